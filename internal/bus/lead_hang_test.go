package bus

import (
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/testenv"
)

// besideOneThatHangs returns two workers that decide because a third one, for which they stood by, does not answer any more.
func besideOneThatHangs(t *testing.T, url string) (all []*leadWorker, other *impostor) {
	t.Helper()
	all = startLeadWorkers(t, url, 2, impatiently)
	waitForDeciders(t, all, 0)
	other = newImpostor(t, url, all[0].lead.subject())
	waitForDeciders(t, all)
	other.silent.Store(true)
	waitForDeciders(t, all, 0, 1)
	return all, other
}

// TestAWorkerThatHangsIsReplacedByAll: a process that is stopped, and still connected, gets its
// share of the requests. The share is smaller if all others decide.
func TestAWorkerThatHangsIsReplacedByAll(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	all, other := besideOneThatHangs(t, url)
	time.Sleep(2 * decidingAskInterval)
	waitForDeciders(t, all, 0, 1)
	other.silent.Store(false)
	waitForDeciders(t, all)

	// When it is gone for good nothing is left to be shared.
	other.silent.Store(true)
	waitForDeciders(t, all, 0, 1)
	if err := other.sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "one of two decides when the one that hung has gone", func() bool { return all[0].Deciding() != all[1].Deciding() })
}

// TestAWorkerThatStartsBesideOneThatHangsDecides, and has no other stand by, which would raise the share of the one that hangs.
func TestAWorkerThatStartsBesideOneThatHangsDecides(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	all, other := besideOneThatHangs(t, url)
	all = append(all, startLeadWorker(t, url, "db", impatiently))
	time.Sleep(3 * decidingAskInterval)
	waitForDeciders(t, all, 0, 1, 2)
	if err := other.sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "one of three decides when the one that hung has gone", func() bool {
		deciding := 0
		for _, w := range all {
			if w.Deciding() {
				deciding++
			}
		}
		return deciding == 1
	})
}
