package engine

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestAProcessHasRunSinceItsLastLateBeat: a beat may take as long as stalledAfter, and while the next one takes longer the
// process has only run since now. When the heartbeat was stopped, none is late.
func TestAProcessHasRunSinceItsLastLateBeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var h heartbeat
		h.init()
		want := func(what string, since time.Time) {
			t.Helper()
			if got := h.runningSince(); !got.Equal(since) {
				t.Errorf("%s: it has run since %s, want since %s", what, got, since)
			}
		}
		began := time.Now()
		want("at first", began)
		for range 3 {
			time.Sleep(stalledAfter)
			want("just in time", began)
			h.beat()
			want("on time", began)
		}
		time.Sleep(stalledAfter + 1)
		want("while a beat is missed", time.Now())
		time.Sleep(time.Minute)
		want("a minute later", time.Now())
		h.beat()
		late := time.Now()
		want("when it comes late", late)
		time.Sleep(stalledAfter)
		h.beat()
		want("with the next one on time", late)
		h.stop()
		time.Sleep(time.Hour)
		want("when it was stopped", late)
	})
}
