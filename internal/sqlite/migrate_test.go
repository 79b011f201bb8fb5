package sqlite

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/seed503877ad/limits/migrations"
)

// TestMigrateDownNeedsEmptyJournal: a return to an older schema loses nothing that is only in the
// journal.
func TestMigrateDownNeedsEmptyJournal(t *testing.T) {
	s := open(t, Config{})
	setFoldPolicy(s, neverFold)
	update(t, s, one, set("1"))
	files, err := fs.Sub(migrations.FS, "sqlite")
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, s.writer, files)
	if err != nil {
		t.Fatal(err)
	}
	s.writer.SetMaxOpenConns(2)
	if _, err := p.DownTo(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "the journal is not empty") {
		t.Errorf("down with a journal: %v", err)
	}
	s.foldAll()
	if _, err := p.DownTo(t.Context(), 1); err != nil {
		t.Errorf("down without: %v", err)
	}
	if n := query(t, s, `SELECT count(*) FROM counters`); n != 1 {
		t.Errorf("%d counters", n)
	}
}
