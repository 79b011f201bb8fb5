package yamlfile

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSameFileIsSoByIdentityTimeAndSize: a file that replaces another may have its time and size, and one that is written into may
// keep its time.
func TestSameFileIsSoByIdentityTimeAndSize(t *testing.T) {
	t.Parallel()
	at := time.Now().Add(-time.Hour)
	file := func(path, text string, at time.Time) os.FileInfo {
		write(t, path, []byte(text))
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		return stat(path)
	}
	path := filepath.Join(t.TempDir(), "f")
	first := file(path, "a: 1", at)
	if !sameFile(first, stat(path)) || !sameFile(nil, nil) {
		t.Error("an unchanged file is another")
	}
	for name, other := range map[string]os.FileInfo{
		"another":          file(path+"2", "a: 1", at),
		"longer":           file(path, "a: 10", at),
		"later":            file(path, "a: 1", at.Add(time.Second)),
		"one that is gone": stat(path + "3"),
	} {
		if sameFile(first, other) || sameFile(other, first) {
			t.Errorf("%s is the same", name)
		}
	}
}
