package journal

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/seed503877ad/limits/internal/engine"
)

func TestRow(t *testing.T) {
	row := Begin([]byte("used before"))
	row = AppendHead(row, 2, engine.CounterID{Key: "ä", Name: ""})
	row = binary.AppendVarint(binary.AppendUvarint(row, 1), -1<<63)
	row = Seal(AppendBytes(row, []byte{0, 0}))

	type fields struct {
		Kind            byte
		Key, Name, Blob []byte
		Uint            uint64
		Int             int64
	}
	read := func(row []byte) (f fields, ok bool) {
		p, err := Open(row)
		ok = err == nil && p.Kind(&f.Kind, 3) && p.Bytes(&f.Key) && p.Bytes(&f.Name) && p.Uint(&f.Uint) && p.Int(&f.Int) &&
			p.Bytes(&f.Blob) && len(p) == 0
		return f, ok
	}
	got, ok := read(row)
	want := fields{Kind: 2, Key: []byte("ä"), Name: []byte{}, Blob: []byte{0, 0}, Uint: 1, Int: -1 << 63}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("all read %v (-want +got):\n%s", ok, diff)
	}
	for i := range row {
		bad := slices.Clone(row)
		bad[i] ^= 0x10
		if _, err := Open(bad); err == nil {
			t.Errorf("byte %d changed, and no error", i)
		}
		if _, err := Open(row[:i]); err == nil {
			t.Errorf("cut off at byte %d, and no error", i)
		}
	}
	if _, err := Open(make([]byte, 4)); err == nil { // the checksum of nothing
		t.Error("a row without a version was opened")
	}
	if p := (Parser{3}); p.Kind(new(byte), 3) {
		t.Error("an unknown kind was read")
	}
	if p := (Parser{}); p.Kind(new(byte), 3) {
		t.Error("a kind was read from nothing")
	}
	if _, err := Open(Seal([]byte{9})); err == nil || !strings.Contains(err.Error(), "version 9") {
		t.Errorf("another version: %v", err)
	}
}

// TestRowsOfEarlierReleasesAreRead: a journal may have been written by an older release that was
// killed.
func TestRowsOfEarlierReleasesAreRead(t *testing.T) {
	row := Seal(AppendBytes(binary.AppendVarint(AppendHead(Begin(nil), 1, engine.CounterID{Key: "k", Name: "1m"}), -2), "s"))
	if got, want := hex.EncodeToString(row), "0101016b02316d030173ba7bbee4"; got != want {
		t.Errorf("a row is written as %s, and as %s before: that needs a new version, and both to be read", got, want)
	}
	var kind byte
	var key, name, text []byte
	var n int64
	p, err := Open(row)
	if err != nil || !p.Kind(&kind, 2) || !p.Bytes(&key) || !p.Bytes(&name) || !p.Int(&n) || !p.Bytes(&text) ||
		kind != 1 || string(key) != "k" || string(name) != "1m" || n != -2 || string(text) != "s" {
		t.Errorf("read: %d %s %s %d %s, %v", kind, key, name, n, text, err)
	}
}

// TestParseAnything parses rows with the right checksum and random content.
func TestParseAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := Open(Seal(append(Begin(nil), rapid.SliceOf(rapid.Byte()).Draw(t, "row")...)))
		if err != nil {
			t.Fatal(err)
		}
		for read := true; read; {
			before := len(p)
			switch rapid.IntRange(0, 3).Draw(t, "method") {
			case 0:
				read = p.Kind(new(byte), 7)
			case 1:
				read = p.Uint(new(uint64))
			case 2:
				read = p.Int(new(int64))
			default:
				var b []byte
				if read = p.Bytes(&b); len(b) > before {
					t.Fatalf("%d bytes of %d", len(b), before)
				}
			}
			if read == (len(p) == before) {
				t.Fatalf("read: %v, of %d bytes %d are left", read, before, len(p))
			}
		}
	})
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	p := Policy{After: 5 * time.Second, Rows: 10, PerRow: 100, Least: 300, Most: 800, Some: 3, Drop: 1}
	for name, c := range map[string]struct {
		ages      []time.Duration // of the dirty counters
		before    int64           // the size of the journal before the first of them
		journaled int64
		changes   int
		want      int
	}{
		"nothing is dirty":            {journaled: 1 << 40, changes: 8, want: 0},
		"all are recent":              {ages: []time.Duration{4 * time.Second, 0}, changes: 8, want: 0},
		"one is old":                  {ages: []time.Duration{5 * time.Second, 4 * time.Second}, changes: 8, want: 1},
		"more are old than one batch": {ages: slices.Repeat([]time.Duration{time.Hour}, 9), changes: 8, want: 3},
		"at the row bound":            {ages: make([]time.Duration, 10), changes: 8, want: 0},
		"over the row bound":          {ages: make([]time.Duration, 11), changes: 8, want: 8},
		"over it, few changes":        {ages: make([]time.Duration, 11), changes: 1, want: 3},
		"over it, many changes":       {ages: make([]time.Duration, 11), changes: 99, want: 11},
		"at the least size":           {ages: make([]time.Duration, 1), before: 7, journaled: 307, changes: 8, want: 0},
		"over the least size":         {ages: make([]time.Duration, 1), before: 7, journaled: 308, changes: 8, want: 1},
		"at the size per counter":     {ages: make([]time.Duration, 5), journaled: 500, changes: 4, want: 0},
		"over the size per counter":   {ages: make([]time.Duration, 5), journaled: 501, changes: 4, want: 4},
		"over the most size":          {ages: make([]time.Duration, 10), journaled: 801, changes: 4, want: 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the clock stands still
				d := Dirty{Rows: len(c.ages), Journaled: c.journaled, Since: func(yield func(*Mark) bool) {
					for _, age := range c.ages {
						if !yield(&Mark{At: time.Now().Add(-age), Before: c.before}) {
							return
						}
					}
				}}
				if got := p.Due(d, c.changes); got != c.want {
					t.Errorf("%d are due, want %d", got, c.want)
				}
			})
		})
	}
}

// TestTend: it folds as long as there is more, and then once per interval.
func TestTend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began, more := time.Now(), 3
		var at []time.Duration
		Tend(ctx, slog.New(slog.DiscardHandler), func() (bool, error) {
			if at = append(at, time.Since(began)); len(at) == 5 {
				cancel()
			}
			more--
			return more > 0, nil
		})
		want := []time.Duration{TendEvery, TendEvery, TendEvery, 2 * TendEvery, 3 * TendEvery}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Error(diff)
		}
	})
}

// TestTendEndsWithItsContext, at once, and folds no more.
func TestTendEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), TendEvery*3/2)
		defer cancel()
		began, folds := time.Now(), 0
		Tend(ctx, slog.New(slog.DiscardHandler), func() (bool, error) { folds++; return false, nil })
		if took := time.Since(began); took != TendEvery*3/2 || folds != 1 {
			t.Errorf("ended after %s and %d folds", took, folds)
		}
	})
}

// TestFailedFoldWaits for the next time, even if there is more: what fails may go on to fail.
func TestFailedFoldWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), TendEvery*5/2)
		defer cancel()
		folds := 0
		Tend(ctx, slog.New(slog.DiscardHandler), func() (bool, error) { folds++; return folds < 100, errors.New("no room") })
		if folds != 2 {
			t.Errorf("%d folds in 2 intervals", folds)
		}
	})
}

// TestLastingFoldFailureIsLogged once, and again when it is over; failures of a busy second
// are not.
func TestLastingFoldFailureIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var log strings.Builder
		tick := 0
		Tend(ctx, slog.New(slog.NewTextHandler(&log, nil)), func() (bool, error) {
			switch tick++; {
			case tick == 60:
				cancel()
				return false, ctx.Err()
			case tick > 1 && tick <= 10, tick > 20 && tick <= 30, tick > 35 && tick < 50: // 9, 10 and 14 times
				return false, errors.New("no room")
			}
			return false, nil
		})
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 4 || !strings.Contains(lines[0], "no room") || !strings.Contains(lines[1], "folded again") {
			t.Errorf("said:\n%s", log.String())
		}
	})
}

// TestMerge compares it with a map.
func TestMerge(t *testing.T) {
	t.Parallel()
	type entry struct {
		Key  string
		Over bool
	}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(over bool) (all []entry) {
			keys := rapid.SliceOfDistinct(rapid.StringMatching("[a-e]{1,2}"), rapid.ID).Draw(t, "keys")
			slices.Sort(keys)
			for _, key := range keys {
				all = append(all, entry{key, over})
			}
			return all
		}
		over, under, most := draw(true), draw(false), rapid.IntRange(1, 12).Draw(t, "most")
		under = under[:min(most, len(under))] // a list holds at most as many as were asked for
		both := make(map[string]entry)
		for _, e := range slices.Concat(under, over) {
			both[e.Key] = e
		}
		var want []entry
		for _, key := range slices.Sorted(maps.Keys(both)) {
			want = append(want, both[key])
		}
		want = want[:min(most, len(want))]
		got := Merge(over, under, most, func(e *entry) engine.CounterID { return engine.CounterID{Key: e.Key} })
		if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
			t.Fatalf("%v over %v, %d at most (-want +got):\n%s", over, under, most, diff)
		}
	})
}
