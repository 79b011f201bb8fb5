package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"reflect"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
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
	loadedAt time.Time
}

// Load reads a policy file. The error is an *[Error] when the file was read and is wrong.
func Load(path string, o Options) (*Set, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	return Parse(path, data, o)
}

// readFile reads no more than is taken.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}

// Parse reads the text of a policy file, which errors call name. The error is an *[Error] with every mistake found.
func Parse(name string, data []byte, o Options) (*Set, error) {
	p := newProblems()
	if len(data) > maxFileBytes {
		p.add("", "the file has more than %d bytes; split the service, or shorten the file with patterns", maxFileBytes)
		return nil, p.err(name)
	}
	root := p.parseYAML(data)
	if root == nil {
		return nil, p.err(name)
	}
	var file File
	p.read(root, reflect.ValueOf(&file).Elem(), "")
	c := compiler{problems: p, options: o}
	set, err := c.compile(&file)
	if err != nil {
		return nil, err
	}
	if err := p.err(name); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	set.hash, set.loadedAt = hex.EncodeToString(sum[:]), time.Now()
	return set, nil
}

// Hash is the SHA-256 of the file, in hex: what sha256sum prints.
func (s *Set) Hash() string { return s.hash }

// LoadedAt is when the file was read.
func (s *Set) LoadedAt() time.Time { return s.loadedAt }

// Policies gives the policies as they are written, in order, with the names of limits filled in. They must not be
// changed.
func (s *Set) Policies() []Policy {
	list := make([]Policy, len(s.policies))
	for i, p := range s.policies {
		list[i] = *p.spec
	}
	return list
}
