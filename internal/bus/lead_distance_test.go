package bus

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/testenv"
)

// farTimes leave a busy machine time: ten times what they are in production, like the distances below.
var farTimes = leadTimes{timeout: patience / 4, slow: 10 * slowAnswer, prompt: 10 * promptAnswer}

// TestOneOfWorkersAtDifferentDistancesDecides: an answer takes as long as the way of the one that answers, too, and that
// is not taken for load.
func TestOneOfWorkersAtDifferentDistancesDecides(t *testing.T) {
	t.Parallel()
	const near, far, farther = 10 * time.Millisecond, 250 * time.Millisecond, 450 * time.Millisecond
	for name, distances := range map[string][]time.Duration{"the far one began": {far, near}, "the near one began": {near, far}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := testenv.NATS(t)
			var all []*leadWorker
			links := map[time.Duration]*slowLink{}
			for _, d := range distances {
				links[d] = newSlowLink(t, srv, d/2, unchanged)
				all = append(all, startLeadWorker(t, links[d].url, "db", func(w *leadWorker) { w.times = farTimes }))
				waitForDeciders(t, all, 0)
			}
			staysSo := func() {
				t.Helper()
				time.Sleep(3 * decidingAskInterval)
				waitForDeciders(t, all, 0)
			}
			staysSo()
			links[far].delay.Store(int64(farther / 2))
			staysSo()
		})
	}
}

// TestOneOfTwoDistantWorkersDecides, though an answer takes longer than one that hangs is waited for.
func TestOneOfTwoDistantWorkersDecides(t *testing.T) {
	t.Parallel()
	times := leadTimes{timeout: time.Second, slow: patience, prompt: patience}
	link := newSlowLink(t, testenv.NATS(t), 300*time.Millisecond, unchanged) // an answer takes 1.2 s
	all := startLeadWorkers(t, link.url, 2, func(w *leadWorker) { w.times = times })
	waitForDeciders(t, all, 0)
	time.Sleep(3 * decidingAskInterval)
	waitForDeciders(t, all, 0)
}

// TestWorkersFarFromTheirServerStandBy: the time that the network takes is not taken for load.
func TestWorkersFarFromTheirServerStandBy(t *testing.T) {
	t.Parallel()
	link := newSlowLink(t, testenv.NATS(t), 100*time.Millisecond, unchanged) // an answer takes 400 ms
	all := startLeadWorkers(t, link.url, 2, func(w *leadWorker) { w.times.slow, w.times.prompt = 300*time.Millisecond, 200*time.Millisecond })
	waitForDeciders(t, all, 0)
	time.Sleep(3 * decidingAskInterval)
	waitForDeciders(t, all, 0)
}

// TestLoadOfADistantWorkerIsNoticed: what it says about its distance explains a part of the time only.
func TestLoadOfADistantWorkerIsNoticed(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	times := leadTimes{timeout: patience / 4, slow: 3 * slowAnswer, prompt: 3 * promptAnswer}
	all := startLeadWorkers(t, url, 1, func(w *leadWorker) { w.times = times })
	other := newImpostor(t, url, all[0].lead.subject())
	distance := 3 * times.slow
	other.claims.Store(int64(distance))
	other.after.Store(int64(distance))
	waitForDeciders(t, all)
	other.after.Store(int64(distance + 2*times.slow))
	waitForDeciders(t, all, 0)
}

// TestAWorkerThatHangsIsReplacedWhateverItSaid about its distance.
func TestAWorkerThatHangsIsReplacedWhateverItSaid(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	for _, distance := range []int64{math.MinInt64, -1, math.MaxInt64} {
		w := startLeadWorker(t, url, t.Name(), impatiently)
		other := newImpostor(t, url, w.lead.subject())
		other.claims.Store(distance)
		all := []*leadWorker{w}
		waitForDeciders(t, all)
		other.silent.Store(true)
		waitForDeciders(t, all, 0)
		if err := other.sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
		if err := w.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAWorkerThatIsBusyIsNotFarther: its shortest round trip counts, until that is so old that its link must have changed.
func TestAWorkerThatIsBusyIsNotFarther(t *testing.T) {
	t.Parallel()
	l := new(lead)
	said := []time.Duration{l.leastRoundTrip(25)}
	for range measurementsKept {
		said = append(said, l.leastRoundTrip(45))
	}
	said = append(said, l.leastRoundTrip(1))
	want := append(slices.Repeat([]time.Duration{25}, measurementsKept), 45, 1)
	if !slices.Equal(said, want) {
		t.Errorf("it says %v, want %v", said, want)
	}
}
