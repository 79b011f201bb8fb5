package policy

import (
	"context"
	"log/slog"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// Keeper holds the policies in force and reads their file anew when it changes. A file that is wrong changes nothing:
// the last good one stays.
type Keeper struct{ *yamlfile.Keeper[Set] }

// Report is the state of the file.
type Report = yamlfile.Report[Set]

// NewKeeper reads the file, which must be right, or gives up with ctx.
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

// Resolve asks the policies in force.
func (k *Keeper) Resolve(q Question) (Resolved, error) { return k.Current().Resolve(q) }
