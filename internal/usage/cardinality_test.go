package usage

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestFloodOfKeys: for an hour new keys are asked for once each, as if somebody made them up. Keys
// that are busier keep their counts, whether they were so from the beginning or become it late; the
// new keys add no more rows than there is room for, and no decision is missing. The next hour is as
// good as the first.
func TestFloodOfKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, log := new(notebook), new(bytes.Buffer)
		const most, every, flood = 1920, 15 * time.Second, 1000
		r := record(t, Config{Store: s, Keys: most, Every: every, Logger: slog.New(slog.NewTextHandler(log, nil))})
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		made, busy := 0, map[string]int64{}
		ask := func(key string, times int64) {
			busy[key] += times
			for range times {
				r.Tally(decided(engine.Consume, 1, key))
			}
		}
		const hours = 2
		for range hours {
			for write := range int(time.Hour / every) {
				time.Sleep(time.Second)
				for range flood {
					r.Tally(decided(engine.Consume, 1, fmt.Sprint("made up:", made)))
					made++
				}
				for k := range 100 {
					ask(fmt.Sprint("early:", k), 2)
				}
				if write >= 120 {
					ask("late", 2)
				}
				if write == 239 { // a key with room is counted however seldom it is asked for
					ask("early:7", 1)
				}
				time.Sleep(every - time.Second)
			}
		}
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkFlood(t, s.written(), busy, most)
		other := int64(0)
		for _, c := range s.written() {
			if c.ID == (ID{}) {
				other += c.Allowed
			}
		}
		if got := r.Losses(); got != (Losses{Other: other}) {
			t.Errorf("%+v, want %d others", got, other)
		}
		if n := strings.Count(log.String(), "--usage-keys"); n != hours {
			t.Errorf("told %d times of %d hours:\n%s", n, hours, log)
		}
	})
}

// checkFlood compares what was counted for keys with busy, and the number of other keys with most.
func checkFlood(t *testing.T, counts []Count, busy map[string]int64, most int) {
	t.Helper()
	got, keys, sum := map[string]int64{}, map[int64]map[string]bool{}, int64(0)
	for _, c := range counts {
		sum += c.Allowed
		if c.ID == (ID{}) {
			continue
		}
		hour := c.At / time.Hour.Milliseconds()
		if keys[hour] == nil {
			keys[hour] = map[string]bool{}
		}
		keys[hour][c.Key] = true
		if busy[c.Key] > 0 {
			got[c.Key] += c.Allowed
		}
	}
	if diff := cmp.Diff(busy, got); diff != "" {
		t.Errorf("busy keys (-want +got):\n%s", diff)
	}
	want := int64(2 * 240 * 1000)
	for _, n := range busy {
		want += n
	}
	if sum != want {
		t.Errorf("%d decisions of %d", sum, want)
	}
	for hour, of := range keys {
		if len(of) > most || len(of) < most*9/10 {
			t.Errorf("hour %d: %d keys of at most %d", hour, len(of), most)
		}
	}
}

func TestCardinality(t *testing.T) {
	t.Parallel()
	hour := time.UnixMilli(0).Add(1000 * time.Hour)
	count := func(key string, decisions, cost int64) Count {
		return Count{ID: ID{Key: key}, At: hour.UnixMilli(), Allowed: decisions, Cost: cost}
	}
	denied := func(key string, decisions int64) Count {
		return Count{ID: ID{Key: key}, At: hour.UnixMilli(), Denied: decisions}
	}
	others := func(decisions, cost int64) Count { return count("", decisions, cost) }
	for name, test := range map[string]struct {
		most   int
		counts []Count
		want   []Count
	}{
		"nothing":                       {8, nil, nil},
		"as many as there is room for":  {4, []Count{count("a", 1, 1), count("b", 1, 1), count("c", 1, 1)}, []Count{count("a", 1, 1), count("b", 1, 1), count("c", 1, 1)}},
		"one more":                      {4, []Count{count("a", 1, 1), count("b", 2, 1), count("c", 2, 1), count("d", 2, 1)}, []Count{count("b", 2, 1), count("c", 2, 1), count("d", 2, 1), others(1, 1)}},
		"the cost decides between them": {1, []Count{count("a", 2, 1), count("b", 2, 9), count("c", 1, 99)}, []Count{count("b", 2, 9), others(3, 100)}},
		"denials are decisions, too":    {1, []Count{count("a", 2, 1), denied("b", 3)}, []Count{denied("b", 3), others(2, 1)}},
		"in whichever order they come":  {1, []Count{denied("b", 3), count("c", 2, 1)}, []Count{denied("b", 3), others(2, 1)}},
		"no room at all":                {0, []Count{count("a", 1, 2), count("b", 3, 4)}, []Count{others(4, 6)}},
		"those without id need no room": {1, []Count{others(1, 2), count("a", 3, 4)}, []Count{count("a", 3, 4), others(1, 2)}},
	} {
		c := newCardinality(test.most)
		if diff := cmp.Diff(test.want, c.limit(test.counts, hour.UnixMilli(), hour)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestKnownIDsNeedNoRoomAgain: what is left is for the new ones, however busy the known ones are.
func TestKnownIDsNeedNoRoomAgain(t *testing.T) {
	t.Parallel()
	hour := time.UnixMilli(0).Add(1000 * time.Hour)
	c := newCardinality(4) // room for 3, at the beginning
	for _, want := range [][]Count{
		{{ID: ID{Key: "a"}, Allowed: 9}, {ID: ID{Key: "b"}, Allowed: 9}},
		{{ID: ID{Key: "a"}, Allowed: 9}, {ID: ID{Key: "b"}, Allowed: 9}, {ID: ID{Key: "new"}, Allowed: 1}},
	} {
		if diff := cmp.Diff(want, c.limit(slices.Clone(want), hour.UnixMilli(), hour)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestRoomGrowsWithTheHour, and a clock that is set back takes none away.
func TestRoomGrowsWithTheHour(t *testing.T) {
	t.Parallel()
	hour := time.UnixMilli(0).Add(1000 * time.Hour)
	c := newCardinality(400)
	c.hour = hour.UnixMilli()
	for after, want := range map[time.Duration]int{
		-time.Minute: 300, 0: 300, 15 * time.Minute: 325, time.Hour: 400, 2 * time.Hour: 400,
	} {
		if got := c.room(hour.Add(after)); got != want {
			t.Errorf("after %s: %d, want %d", after, got, want)
		}
	}
	for i := range 350 {
		c.seen[uint64(i)] = struct{}{}
	}
	for after, want := range map[time.Duration]int{0: 0, time.Hour: 50} {
		if got := c.room(hour.Add(after)); got != want {
			t.Errorf("after %s, with 350 taken: %d, want %d", after, got, want)
		}
	}
}
