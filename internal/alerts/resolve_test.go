package alerts

import (
	"context"
	"slices"
	"testing"
)

// retrying is a store whose transaction is retried, which a real one does only if another process interferes.
type retrying struct{ Store }

func (retrying) ResolveAlerts(_ context.Context, _ int, build func(Alert) ([]Delivery, error)) (int, error) {
	for _, rule := range []string{"a", "b", "a"} { // the first attempt, and both alerts of the second
		if _, err := build(Alert{GroupID: GroupID{Rule: rule}}); err != nil {
			return 0, err
		}
	}
	return 2, nil
}

// told are the changes of alerts that an observer was told.
type told struct {
	noObserver
	changes []string
}

func (o *told) AlertChanged(what, rule string) { o.changes = append(o.changes, what+" "+rule) }

// TestRetriedTransactionResolvesOnce: what it did before is not counted.
func TestRetriedTransactionResolvesOnce(t *testing.T) {
	t.Parallel()
	seen := &told{}
	s := New(Config{Store: retrying{}, Rules: Default, Observer: seen})
	if note, err := s.Resolve(t.Context()); err != nil || note != "resolved 2" || !slices.Equal(seen.changes, []string{"resolved b", "resolved a"}) {
		t.Errorf("%s, %v: %v", note, err, seen.changes)
	}
}
