package policy

import (
	"context"
	"log/slog"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// Keeper holds the policies in force, and reloads their file when it changes. A file with mistakes is rejected, and the last
// good one stays in force.
type Keeper struct{ *yamlfile.Keeper[Set] }

// Report is the state of the file.
type Report = yamlfile.Report[Set]

// NewKeeper reads the file. It fails if the file has mistakes, or if ctx ends before it was read.
func NewKeeper(ctx context.Context, path string, o Options, log *slog.Logger) (*Keeper, error) {
	k, err := yamlfile.NewKeeper(ctx, yamlfile.Config[Set]{Path: path, What: "policies", Log: log,
		Parse:    func(name string, data []byte) (*Set, error) { return Parse(name, data, o) },
		Describe: func(s *Set) []any { return []any{"policies", len(s.policies)} },
	})
	if err != nil {
		return nil, err
	}
	return &Keeper{k}, nil
}

// Resolve resolves a request with the policies in force.
func (k *Keeper) Resolve(q Question) (Resolved, error) { return k.Current().Resolve(q) }
