package web

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

// schemas serves embedded files, which never change.
type schemas struct {
	files map[string]schemaFile
	list  string
}

type schemaFile struct {
	data       []byte
	etag, kind string
}

func newSchemas(fsys fs.FS) (*schemas, error) {
	s := &schemas{files: map[string]schemaFile{}}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		kind := contentType(name)
		if kind == "" {
			return nil
		}
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		s.files[name] = schemaFile{data: data, kind: kind, etag: `"` + hex.EncodeToString(sum[:8]) + `"`}
		s.list += "/schemas/" + name + "\n"
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read schemas: %w", err)
	}
	return s, nil
}

// contentType returns the content type of a file; empty if the file is not served.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".json":
		return "application/schema+json"
	case ".yaml":
		return "application/yaml"
	default:
		return ""
	}
}

func (s *schemas) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/schemas/")
	if name == "" {
		text(w, s.list)
		return
	}
	f, ok := s.files[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", f.kind)
	w.Header().Set("ETag", f.etag)
	// Not immutable: a release may add a field to a version. Any origin may read them, because they are public and tools in
	// browsers use them.
	w.Header().Set("Cache-Control", "public, max-age=3600")
	w.Header().Set("Access-Control-Allow-Origin", "*")
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(f.data))
}
