package engine

import (
	"context"
	"fmt"
	"time"
)

// Stale is a counter that should read as unused and does not, or that cannot be read.
type Stale struct {
	CounterID
	Err error
}

// QuotaPage is what [CheckQuotas] found on one page of counters.
type QuotaPage struct {
	// Read counts the counters of the page; Over counts those with a fixed window that has ended.
	Read, Over int
	Stale      []Stale
	// Last is the counter after which the next page begins.
	Last CounterID
}

// CheckQuotas reads up to max counters after the given one, and verifies that each fixed window
// that has ended reads as unused, as in a status. It computes the end anew from the beginning of
// the window: a stored end may be wrong, for example if it was computed with other rules of its
// time zone. It also reports counters that cannot be read.
func CheckQuotas(ctx context.Context, s Store, after CounterID, max int) (QuotaPage, error) {
	stored, now, err := s.List(ctx, "", after, max)
	if err != nil {
		return QuotaPage{Last: after}, unavailable("list counters", err)
	}
	page := QuotaPage{Read: len(stored), Last: after}
	for i := range stored {
		over, err := checkQuota(&stored[i], now)
		if over {
			page.Over++
		}
		if err != nil {
			page.Stale = append(page.Stale, Stale{stored[i].CounterID, err})
		}
		page.Last = stored[i].CounterID
	}
	return page, nil
}

// checkQuota reports whether the counter has a fixed window that has ended, and what is wrong with it.
func checkQuota(c *StoredCounter, now int64) (over bool, err error) {
	l, s, err := c.decode()
	if err != nil || l.Algorithm != FixedWindow || s.algorithm != FixedWindow {
		return false, err
	}
	_, end := l.span(s.fixed.begin)
	if now < end {
		return false, nil
	}
	s.advance(&l, now)
	if used := s.fixed.used(); used > 0 {
		return true, fmt.Errorf("its window ended at %s, and %d of %d still count as used",
			time.UnixMilli(end).UTC().Format(time.RFC3339), used, l.Limit)
	}
	return true, nil
}
