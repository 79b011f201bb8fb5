package policy

import (
	"context"
	"log/slog"
	"slices"

	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// Keeper holds the policies in force, and reloads their file when it changes. A file with mistakes is rejected, and the last
// good one stays in force.
type Keeper struct{ *yamlfile.Keeper[Set] }

// Report is the state of the file.
type Report = yamlfile.Report[Set]

// NewKeeper reads the file. It fails if the file has mistakes, or if ctx ends before it was read. reloaded is called after
// each attempt to load a changed file, and may be nil.
func NewKeeper(ctx context.Context, path string, o Options, log *slog.Logger, reloaded func()) (*Keeper, error) {
	var before *Set
	describe := func(s *Set) []any {
		attributes := append([]any{"policies", len(s.policies)}, s.renamed(before)...)
		before = s
		return attributes
	}
	k, err := yamlfile.NewKeeper(ctx, yamlfile.Config[Set]{Path: path, What: "policies", Log: log, Reloaded: reloaded,
		Parse:    func(name string, data []byte) (*Set, error) { return Parse(name, data, o) },
		Describe: describe,
	})
	if err != nil {
		return nil, err
	}
	return &Keeper{k}, nil
}

// renamed returns attributes for the log: the limits that s has and before had not, and those that are gone. A limit is
// known by its names, so one that is renamed counts anew and loses its overrides.
func (s *Set) renamed(before *Set) (attributes []any) {
	if before == nil {
		return nil
	}
	add := func(what string, ids []overrides.LimitID) {
		if len(ids) > 0 {
			attributes = append(attributes, what, yamlfile.FirstNames(ids, func(id overrides.LimitID) string { return id.Policy + "/" + id.Name }))
		}
	}
	add("limitsNew", s.without(before))
	add("limitsGone", before.without(s))
	return attributes
}

// without returns the limits that s has and other has not, in order.
func (s *Set) without(other *Set) (ids []overrides.LimitID) {
	for _, p := range s.policies {
		for i := range p.base.usual {
			if id := (overrides.LimitID{Policy: p.name, Name: p.base.usual[i].name}); !other.HasLimit(id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// HasLimit reports whether a policy has a limit. Tiers and schedules change limits, and neither add nor remove any.
func (s *Set) HasLimit(id overrides.LimitID) bool {
	p := s.byName[id.Policy]
	return p != nil && slices.ContainsFunc(p.base.usual, func(l limit) bool { return l.name == id.Name })
}
