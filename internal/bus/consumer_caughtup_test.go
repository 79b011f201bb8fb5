package bus

import (
	"testing"
	"time"
)

// TestAnIdleStreamIsCaughtUpAgainAndAgain: alerts are resolved only up to then. It is not asked with each pull.
func TestAnIdleStreamIsCaughtUpAgainAndAgain(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	l.publish(1)
	l.pass(1, 0)
	for range 2 {
		l.c.idle.askedAt = time.Time{}
		began := time.Now().Truncate(time.Millisecond)
		l.pass(1, 0)
		if at := l.c.CaughtUp(); at.Before(began) {
			t.Errorf("caught up at %s, want %s or later", at, began)
		}
		if l.c.idle.askedAt.Before(began) {
			t.Error("it is asked with the next pull, too")
		}
	}
}

// TestABacklogIsNoticed, so that losses are looked for, and its end too.
func TestABacklogIsNoticed(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	l.c.cfg.Batch = 5
	l.publish(10)
	if l.pass(5, 0); !l.c.hasBacklog {
		t.Error("no backlog after half of the events")
	}
	if l.pass(10, 0); l.c.hasBacklog {
		t.Error("a backlog after all events")
	}
}
