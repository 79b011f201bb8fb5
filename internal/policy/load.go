package policy

import (
	"fmt"
	"sync/atomic"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// Options are the settings of the service that a policy file depends on.
type Options struct {
	// HashKey is the key of the filter hash, at least 16 bytes. Without it, a file that uses the filter is rejected.
	HashKey []byte
	// Warning is the warning threshold of policies that set none, as a fraction of the limit.
	Warning float64
	// OnError is what to answer if the store fails, for policies that do not set it.
	OnError engine.OnError
}

// Set is the compiled policies of a file. It is immutable and safe for concurrent use.
type Set struct {
	policies []*policy
	byName   map[string]*policy
	index    index
	groups   int
	options  Options
	hash     string
	version  uint64
}

// versions counts the sets that were made.
var versions atomic.Uint64

// Version is a number that no other set of the process has, and not 0. Unlike a pointer, it can be kept without keeping the
// set in memory.
func (s *Set) Version() uint64 { return s.version }

// Load reads a policy file. The error is an *[Error] if the file could be read and has mistakes.
func Load(path string, o Options) (*Set, error) {
	data, err := yamlfile.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	return Parse(path, data, o)
}

// format adapts the messages of yamlfile to policy files.
var format = yamlfile.Format{Name: "policy file", Want: "policies", Shorten: "split the service, or shorten the file with patterns",
	Durations: []string{"window"}}

// Error lists the mistakes of a file, in the order of their lines.
type Error = yamlfile.Error

// Parse parses and compiles the text of a policy file. Errors refer to the file by name. The error is an *[Error] with every
// mistake that was found.
func Parse(name string, data []byte, o Options) (*Set, error) {
	p := yamlfile.New(format)
	var file File
	if !p.Read(data, &file) {
		return nil, p.Err(name)
	}
	c := compiler{Problems: p, options: o}
	set, err := c.compile(&file)
	if err != nil {
		return nil, err
	}
	if err := p.Err(name); err != nil {
		return nil, err
	}
	set.hash = yamlfile.Hash(data)
	return set, nil
}

// Hash is the SHA-256 of the file, in hex: what sha256sum prints.
func (s *Set) Hash() string { return s.hash }

// Policies returns the policies as they are written, in order, with the default names of limits filled in. The caller must
// not modify them.
func (s *Set) Policies() []Policy {
	list := make([]Policy, len(s.policies))
	for i, p := range s.policies {
		list[i] = *p.spec
	}
	return list
}
