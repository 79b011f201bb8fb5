package sqlite

import (
	"math"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// tune sets when transactions fold, and ends the folding by itself, which would come at any moment.
func tune(s *Store, p foldPolicy) {
	s.cancel()
	<-s.tended
	s.fold = p
}

// policies fold at once, by number, by size, and never.
var policies = []foldPolicy{
	{rows: math.MaxInt, most: math.MaxInt64, least: math.MaxInt64, some: 3, drop: 2},
	{after: time.Hour, rows: 20, most: math.MaxInt64, least: math.MaxInt64, some: 5, drop: 4},
	{after: time.Hour, rows: math.MaxInt, perRow: 60, least: 100, most: 4000, some: 5, drop: 1},
	{after: time.Hour, rows: math.MaxInt, most: math.MaxInt64, least: math.MaxInt64},
}

// TestModel runs random histories, with folding in between, with reopening, and with what is in memory read again.
func TestModel(t *testing.T) {
	t.Parallel()
	step := 0
	cfg := Config{Path: filepath.Join(t.TempDir(), "limits.db")}
	var s *Store
	reopen := func() {
		if s != nil {
			s.Close()
		}
		var err error
		if s, err = Open(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	reopen()
	defer func() { s.Close() }()
	rapid.Check(t, func(t *rapid.T) {
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }
		if _, err := s.Reset(t.Context(), engine.Selection{}, false); err != nil {
			t.Fatal(err)
		}
		m := make(storetest.Model)
		tune(s, policies[pick(len(policies))])
		for range 1 + pick(25) {
			step++
			switch pick(30) {
			case 0:
				if pick(3) > 0 { // it is dear
					continue
				}
				reopen()
				tune(s, policies[pick(len(policies))])
			case 1:
				s.stale = true // as after a commit whose answer was lost
			}
			if err := m.Step(t.Context(), s, step, pick); err != nil {
				t.Fatal(err)
			}
		}
		if diff, err := m.Diff(t.Context(), s); diff != "" || err != nil {
			t.Fatalf("(-want +got)\n%s%v", diff, err)
		}
	})
}
