package usage

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestCountsOfOneIDAreSummed, whatever comes between them: SQL cannot update a row twice in one
// statement.
func TestCountsOfOneIDAreSummed(t *testing.T) {
	t.Parallel()
	var all, want []Count
	for _, id := range []ID{{"a", "p", "u"}, {"a", "p", "v"}, {"a", "q", "u"}, {"b", "p", "u"}} {
		for _, at := range []int64{1, 2} {
			all = append(all, Count{ID: id, At: at, Allowed: 1, Denied: 2, Cost: 3})
			want = append(want, Count{ID: id, At: at, Allowed: 2, Denied: 4, Cost: 6})
		}
	}
	got := sortAndSum(slices.Concat(all, all))
	slices.SortStableFunc(want, func(a, b Count) int { return int(a.At - b.At) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	minutes := []Count{{ID: ID{Key: "alone"}, At: 1, Allowed: 1}, {ID: ID{Key: "alone"}, At: 2, Allowed: 1}}
	if diff := cmp.Diff(minutes, sortAndSum(slices.Clone(minutes))); diff != "" {
		t.Errorf("two minutes of one id (-want +got):\n%s", diff)
	}
}

// TestCountsWithoutRoomAreLost: those that wait stay, and all decisions that are dropped are told.
func TestCountsWithoutRoomAreLost(t *testing.T) {
	t.Parallel()
	waits := Count{ID: ID{Key: "waits"}, At: 1, Allowed: 1}
	r := &Recorder{tally: newTally(), ids: newCardinality(manyKeys), cfg: Config{Pending: 1}, began: time.Now(), pending: []Count{waits}}
	r.tally.shards[0].other = Count{Allowed: 2, Denied: 3} // what had no room there
	r.takeCounts()
	if diff := cmp.Diff([]Count{waits}, r.pending); diff != "" {
		t.Errorf("what waits (-want +got):\n%s", diff)
	}
	if got, want := r.Losses(), (Losses{Other: 5, Counts: 5}); got != want {
		t.Errorf("lost: %+v, want %+v", got, want)
	}
}

// TestRefTakesOnePlace in the tally, however often it is counted: else the tally would be full, and other ids lose their names.
func TestRefTakesOnePlace(t *testing.T) {
	t.Parallel()
	y := newTally()
	q, d := decided(engine.Consume, 1, "a")
	q.Limits[0].Ref = new(engine.Ref)
	for range 2 { // also after it was taken
		for range 10 {
			y.add(q, d)
		}
		if n := y.size(); n != 1 {
			t.Errorf("it takes %d places", n)
		}
		y.take(7, func(c Count) {
			if c != counted1("a", 7, 10, 0, 10) {
				t.Errorf("counted %+v", c)
			}
		})
	}
}
