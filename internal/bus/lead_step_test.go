package bus

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/testenv"
)

// stepped ends the loop of a worker, so that only the test has it look for others.
func stepped(w *leadWorker) *lead {
	w.lead.stop()
	w.lead.done.Wait()
	return w.lead
}

// TestAWorkerThatStandsByDoesSoForAnyOther, also for one that decides since it has stood by.
func TestAWorkerThatStandsByDoesSoForAnyOther(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	all := startLeadWorkers(t, url, 2)
	waitForDeciders(t, all, 0)
	all[0].disabled.Store(true)
	waitForDeciders(t, all, 1)
	l := stepped(all[0])
	all[0].disabled.Store(false)
	if l.own.Load().Since >= all[1].lead.own.Load().Since {
		t.Fatal("the worker that stands by has not decided before the other")
	}
	for range 3 {
		l.checkStandby(t.Context())
		waitForDeciders(t, all, 1)
	}
}

// TestAWorkerWithoutAStoreAnswersNobody from its next check on, and not only when it asks the next time.
func TestAWorkerWithoutAStoreAnswersNobody(t *testing.T) {
	t.Parallel()
	w := startLeadWorker(t, testenv.NATS(t).ClientURL(), "db")
	l := stepped(w)
	l.nextAsk = time.Time{}
	l.checkDeciding(t.Context())
	if l.questionSub == nil {
		t.Fatal("it does not answer after it has asked")
	}
	l.nextAsk = time.Now().Add(time.Hour)
	for _, able := range []bool{false, true} {
		w.disabled.Store(!able)
		if l.checkDeciding(t.Context()); (l.questionSub != nil) != able {
			t.Errorf("able %t: it answers %t", able, l.questionSub != nil)
		}
	}
}

// TestAWorkerThatDecidesAsksRarely, and one that has stood by keeps how far it is from its server.
func TestAWorkerThatDecidesAsksRarely(t *testing.T) {
	t.Parallel()
	l := stepped(startLeadWorker(t, testenv.NATS(t).ClientURL(), "db"))
	l.nextAsk = time.Time{}
	began := time.Now()
	l.checkDeciding(t.Context())
	if l.nextAsk.Before(began) || l.nextAsk.After(time.Now().Add(decidingAskInterval)) {
		t.Errorf("it asks again after %s, want after up to %s", l.nextAsk.Sub(began), decidingAskInterval)
	}
	asked := l.questions
	l.nextAsk = time.Now().Add(time.Hour)
	if l.checkDeciding(t.Context()); l.questions != asked {
		t.Error("it asks before it is time to")
	}
	own := *l.own.Load()
	own.RoundTrip = 12345
	l.own.Store(&own)
	if l.decideAs(own.Worker); l.own.Load().RoundTrip != 12345 {
		t.Errorf("it says that it is %d ns from its server", l.own.Load().RoundTrip)
	}
}

// TestAnAverageOfEarlierIsForgotten when a worker stands by: it would decide again at once.
func TestAnAverageOfEarlierIsForgotten(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	w := startLeadWorker(t, url, "db")
	l := stepped(w)
	newImpostor(t, url, l.subject())
	l.setAnswering(false) // so that the question reaches only the other
	l.nextAsk, l.answerTime = time.Time{}, time.Hour
	waitFor(t, "it stands by", func() bool {
		l.nextAsk = time.Time{}
		l.checkDeciding(t.Context())
		return !w.Deciding()
	})
	if l.answerTime >= patience {
		t.Errorf("the average is %s", l.answerTime)
	}
}

// TestAWorkerGetsReadyWhileAnotherStops: it reads what was decided while that one still decides.
func TestAWorkerGetsReadyWhileAnotherStops(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	a := startLeadWorker(t, url, "db")
	waitForDeciders(t, []*leadWorker{a}, 0)
	var once sync.Once
	var b *leadWorker
	ready := make(chan bool, 1)
	b = startLeadWorker(t, url, "db", func(w *leadWorker) {
		w.reads = func(context.Context) { once.Do(func() { ready <- !w.Deciding() }) }
	})
	waitForDeciders(t, []*leadWorker{a, b}, 0)
	if err := a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case early := <-ready:
		if !early {
			t.Error("it read only when it decided itself")
		}
	case <-time.After(patience):
		t.Error("it never read what was decided meanwhile")
	}
}
