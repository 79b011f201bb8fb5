package policy

import (
	"fmt"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// Options are what a file needs beside itself.
type Options struct {
	// HashKey is the key of the filter hash, 16 bytes or more. A file that hashes is a mistake without it.
	HashKey []byte
	// Warning is the part of a limit at or below which a warning is raised, where the policy does not say; below 0
	// raises none.
	Warning float64
	// OnError is what to answer when the store fails, where the policy does not say.
	OnError engine.OnError
}

// Set is the policies of a file. It is never changed, and may be used by many at a time.
type Set struct {
	policies []*policy
	byName   map[string]*policy
	groups   int
	options  Options
	hash     string
}

// Load reads a policy file. The error is an *[Error] when the file was read and is wrong.
func Load(path string, o Options) (*Set, error) {
	data, err := yamlfile.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	return Parse(path, data, o)
}

// format is what the messages say of a policy file.
var format = yamlfile.Format{Name: "policy file", Want: "policies", Shorten: "split the service, or shorten the file with patterns",
	Durations: []string{"window"}}

// Error lists the mistakes of a file, in order of lines.
type Error = yamlfile.Error

// Parse reads the text of a policy file, which errors call name. The error is an *[Error] with every mistake found.
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

// Policies gives the policies as they are written, in order, with the names of limits filled in. They must not be
// changed.
func (s *Set) Policies() []Policy {
	list := make([]Policy, len(s.policies))
	for i, p := range s.policies {
		list[i] = *p.spec
	}
	return list
}
