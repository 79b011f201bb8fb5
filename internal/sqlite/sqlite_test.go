package sqlite

import (
	"bytes"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// open opens a store, and closes it when the test ends. It is in a temporary folder unless cfg
// names a file.
func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.Path == "" {
		cfg.Path = filepath.Join(t.TempDir(), "limits.db")
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// update runs a transaction that has to succeed.
func update(t testing.TB, s *Store, b engine.Batch, decide func(engine.Snapshot) engine.Changes) {
	t.Helper()
	if err := s.Update(t.Context(), b, decide); err != nil {
		t.Fatal(err)
	}
}

// set is a decision that writes a state for the only counter of the batch.
func set(state string) func(engine.Snapshot) engine.Changes {
	return func(engine.Snapshot) engine.Changes {
		return engine.Changes{Counters: []engine.CounterChange{{State: []byte(state), Spec: []byte(`{}`)}}}
	}
}

var one = engine.Batch{Counters: []engine.CounterID{{Key: "a", Name: "1m"}}}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store { return open(t, Config{}) })
	storetest.MovedClock(t, func(t *testing.T) (storetest.Store, func(time.Duration)) {
		now := time.UnixMilli(1_700_000_000_000)
		return open(t, Config{Now: func() time.Time { return now }}), func(d time.Duration) { now = now.Add(d) }
	})
}

func TestReopen(t *testing.T) {
	// Characters with a meaning in a URI.
	path := filepath.Join(t.TempDir(), "new folder", "100% of #1?.db")
	s := open(t, Config{Path: path})
	update(t, s, one, set("kept"))
	s.Close()
	found, _, err := open(t, Config{Path: path}).Counters(t.Context(), "a")
	if err != nil || len(found) != 1 || string(found[0].State) != "kept" {
		t.Errorf("Counters = %v, %v", found, err)
	}
}

// TestStatusIsBounded: so many counters of a key are read from the table, too.
func TestStatusIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.db")
	s := open(t, Config{Path: path})
	for i := range engine.MaxKeyCounters + 5 {
		update(t, s, engine.Batch{Counters: []engine.CounterID{{Key: "a", Name: fmt.Sprintf("%04d", i)}}}, set("1"))
	}
	s.Close() // which folds them
	storetest.CheckManyOfOneKey(t, open(t, Config{Path: path}))
}

func TestFileModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, Config{Path: filepath.Join(dir, "limits.db")})
	update(t, s, one, set("1"))
	want := map[string]fs.FileMode{
		"": 0o700 | fs.ModeDir, "limits.db": 0o600, "limits.db-wal": 0o600, "limits.db-shm": 0o600,
	}
	for name, mode := range want {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: mode %v, %v; want %v", name, info.Mode(), err, mode)
		}
	}
}

func TestDurabilityPragmas(t *testing.T) {
	s := open(t, Config{})
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "wal_autocheckpoint": "400"} {
		var got string
		if err := s.conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %s, %v; want %s", pragma, got, err, want)
		}
	}
}

func TestSchemaTooNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.db")
	s := open(t, Config{Path: path})
	if _, err := s.conn.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)`); err != nil {
		t.Fatal(err)
	}
	s.Close()
	_, err := Open(t.Context(), Config{Path: path})
	if err == nil || !strings.Contains(err.Error(), "upgrade limiter to a release that knows version 999") {
		t.Errorf("Open: %v", err)
	}
}

func TestNoPath(t *testing.T) {
	if _, err := Open(t.Context(), Config{}); err == nil {
		t.Error("opened no path")
	}
}

func TestClock(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	s := open(t, Config{Now: func() time.Time { return at }})
	err := s.Update(t.Context(), one, func(snap engine.Snapshot) engine.Changes {
		if snap.Now != at.UnixMilli() {
			t.Errorf("now is %d, want %d", snap.Now, at.UnixMilli())
		}
		return engine.Changes{}
	})
	if err != nil {
		t.Error(err)
	}
}

func BenchmarkUpdate100(b *testing.B) {
	s := open(b, Config{})
	storetest.BenchmarkUpdate(b, s, 100)
}

func BenchmarkUpdate1(b *testing.B) {
	s := open(b, Config{})
	storetest.BenchmarkUpdate(b, s, 1)
}

func BenchmarkTake(b *testing.B) { storetest.BenchmarkTake(b, open(b, Config{}), 50) }

// BenchmarkFold64 is what a fold adds to a transaction: it writes counters of a large table, each
// on another page.
func BenchmarkFold64(b *testing.B) {
	s := open(b, Config{})
	setFoldPolicy(s, neverFold)
	const n = 64_000
	ids := make([]engine.CounterID, n)
	for i := range ids {
		ids[i] = engine.CounterID{Key: fmt.Sprintf("k:%06d", i*7919%n), Name: "1m"}
	}
	round := byte(0)
	fill := func() {
		round++
		err := s.Update(b.Context(), engine.Batch{Counters: ids}, func(engine.Snapshot) (c engine.Changes) {
			for i := range ids {
				c.Counters = append(c.Counters, engine.CounterChange{Slot: i, State: bytes.Repeat([]byte{round}, 150), Spec: []byte("{}")})
			}
			return c
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	fill()
	s.foldAll()
	for b.Loop() {
		if len(s.dirty.rows) == 0 {
			b.StopTimer()
			fill()
			b.StartTimer()
		}
		if _, err := s.foldSome(b.Context(), func() int { return 64 }); err != nil {
			b.Fatal(err)
		}
	}
}

// TestTemporaryDataStaysInMemory: the data folder may be the only one that is writable, as in a container whose root is
// read-only, and SQLite looks for no temporary files there.
func TestTemporaryDataStaysInMemory(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	reader, err := s.reader.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for name, conn := range map[string]*sql.Conn{"writer": s.conn, "reader": reader} {
		var store int
		if err := conn.QueryRowContext(t.Context(), "PRAGMA temp_store").Scan(&store); err != nil {
			t.Fatal(err)
		}
		if store != 2 {
			t.Errorf("temp_store of the %s is %d, want 2, which is memory", name, store)
		}
	}
}
