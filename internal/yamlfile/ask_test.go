package yamlfile

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
)

// TestReloadOnDemandLogsOutcome: a reload on demand always logs its outcome. The watch does not.
func TestReloadOnDemandLogsOutcome(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, version(1))
	var lines strings.Builder
	k, err := NewKeeper(t.Context(), Config[pair]{Path: path, What: "pairs", Parse: parsePair, Log: slog.New(slog.NewTextHandler(&lines, nil))})
	if err != nil {
		t.Fatal(err)
	}
	hash := Hash(version(1))
	for _, c := range []struct {
		name     string
		file     []byte
		read     func() error
		want     string // the line; empty for none
		failures int64
	}{
		{"the same, seen", version(1), k.Reload, "", 0},
		{"the same, asked", version(1), k.ReloadOnDemand, `level=INFO msg="pairs unchanged" file=` + path + " hash=" + hash, 0},
		{"wrong, seen", []byte("a: x"), k.Reload, `level=ERROR msg="pairs not loaded`, 1},
		{"wrong, seen again", []byte("a: x"), k.Reload, "", 1},
		{"wrong, asked", []byte("a: x"), k.ReloadOnDemand, `level=ERROR msg="pairs not loaded`, 2},
		{"wrong, read anew", []byte("a: x"), k.ForceReload, `level=ERROR msg="pairs not loaded`, 3},
		{"right, asked", version(2), k.ReloadOnDemand, `level=INFO msg="pairs loaded"`, 3},
	} {
		write(t, path, c.file)
		lines.Reset()
		err := c.read()
		said := lines.String()
		if !strings.Contains(said, c.want) || strings.Count(said, "\n") != min(len(c.want), 1) {
			t.Errorf("%s: the log says %q, want %q", c.name, said, c.want)
		}
		if r := k.Report(); r.Failures != c.failures || r.Err != err {
			t.Errorf("%s: %v and %+v", c.name, err, r)
		}
	}
}
