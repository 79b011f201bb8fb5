package limits_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestWhatUsersCopyReconnectsForEver: a connection that is closed after 60 tries limits nothing until somebody notices.
func TestWhatUsersCopyReconnectsForEver(t *testing.T) {
	connect, found := regexp.MustCompile(`nats\.Connect\(.*`), 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		test := strings.HasSuffix(path, "_test.go")
		example := strings.HasPrefix(path, "examples/") && !strings.HasPrefix(path, "examples/internal/") && !test ||
			test && strings.HasPrefix(entry.Name(), "example")
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".md") && !(example && strings.HasSuffix(path, ".go")) {
			return err
		}
		text, err := os.ReadFile(path)
		for _, line := range connect.FindAllString(string(text), -1) {
			if found++; !strings.Contains(line, "nats.MaxReconnects(-1)") {
				t.Errorf("%s: %s has no nats.MaxReconnects(-1)", path, line)
			}
		}
		return err
	})
	if err != nil || found < 10 {
		t.Errorf("%d connections, %v", found, err)
	}
}
