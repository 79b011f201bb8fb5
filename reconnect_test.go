package limits_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestWhatUsersCopyReconnectsForEver: a connection that is closed after 60 tries, or two refusals, limits nothing until
// somebody notices.
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
			found++
			for _, option := range []string{"nats.MaxReconnects(-1)", "nats.IgnoreAuthErrorAbort()"} {
				if !strings.Contains(line, option) {
					t.Errorf("%s: %s has no %s", path, line, option)
				}
			}
		}
		return err
	})
	if err != nil || found < 10 {
		t.Errorf("%d connections, %v", found, err)
	}
}
