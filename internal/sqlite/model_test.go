package sqlite

import (
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
	"github.com/seed503877ad/limits/internal/storetest"
)

// setFoldPolicy sets when transactions fold, and stops foldLoop, which would fold at any moment.
func setFoldPolicy(s *Store, p journal.Policy) {
	s.cancel()
	<-s.foldLoopDone
	s.foldPolicy = p
}

// TestModel runs random histories. It folds in between, reopens the file, and reads memory again.
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
		setFoldPolicy(s, storetest.FoldPolicies[pick(len(storetest.FoldPolicies))])
		for range 1 + pick(25) {
			step++
			switch pick(30) {
			case 0:
				if pick(3) > 0 { // it is slow
					continue
				}
				reopen()
				setFoldPolicy(s, storetest.FoldPolicies[pick(len(storetest.FoldPolicies))])
			case 1:
				s.stale = true // as after a commit in doubt
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
