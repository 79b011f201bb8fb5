package alerts_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// catchAll is a file of so many rules that each match every denial.
func catchAll(rules int) string {
	var file strings.Builder
	file.WriteString("rules:\n")
	for i := range rules {
		fmt.Fprintf(&file, "  - {name: rule%d, threshold: {denials: %d, within: %ds}, channels: [log]}\n", i, 1+i%3, 600+i)
	}
	return file.String()
}

// transactions is a store that keeps how many groups each Take had. fail is the number of one that fails after it has decided.
type transactions struct {
	alerts.Store
	groups, events []int
	fail           int
	// during is called within each.
	during func()
}

var errTransaction = errors.New("the transaction failed")

func (s *transactions) Take(ctx context.Context, t alerts.TakeQuery, decide func(alerts.TakeState) (alerts.Changes, error)) error {
	s.groups, s.events = append(s.groups, len(t.Groups)), append(s.events, len(t.Events))
	return s.Store.Take(ctx, t, func(known alerts.TakeState) (alerts.Changes, error) {
		if s.during != nil {
			s.during()
		}
		changes, err := decide(known)
		if len(s.groups) == s.fail {
			err = errTransaction
		}
		return changes, err
	})
}

// told is what an alert tells, without its id, and without its words: they are as of its first transaction.
func told(all []alerts.Alert) (told []string) {
	for _, a := range all {
		told = append(told, fmt.Sprint(a.GroupID, a.EventID, a.Denied, a.Events, a.FirstAt, a.LastAt, a.RaisedAt, a.ResolveAt, a.Key, a.Notice))
	}
	slices.Sort(told)
	return told
}

// TestTransactionsAreBoundedByMatches, however many rules each event matches, and decisions have their turn between them. The
// alerts are those of a single transaction.
func TestTransactionsAreBoundedByMatches(t *testing.T) {
	t.Parallel()
	const rules, most = 30, 64
	var want []string
	for _, most := range []int{1 << 20, most, 1} {
		r := newRig(t, catchAll(rules))
		var events []alerts.Event
		for i := range 20 { // several of each user
			events = append(events, r.exceeded(fmt.Sprint("u", i%8), "api", 1))
		}
		events = append(events, events[:5]...)
		s := &transactions{Store: r.store}
		var deciding sync.WaitGroup
		s.during = func() {
			deciding.Go(func() {
				reply, err := r.limiter.Consume(t.Context(), limits.Per("k", 1000, "1h"))
				if err != nil || reply.Degraded {
					t.Errorf("a decision beside events: %+v, %v", reply, err)
				}
			})
		}
		if err := r.newBounded(s, most).Take(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		deciding.Wait()
		if bound := max(most, rules); slices.Max(s.groups) > bound || slices.Max(s.events) > max(1, bound/rules) && most < 1<<20 {
			t.Errorf("with at most %d matches a transaction has %d groups of %d events", most, slices.Max(s.groups), slices.Max(s.events))
		}
		got := told(r.all())
		if want == nil {
			want = got
		}
		if diff := cmp.Diff(want, got); diff != "" || len(got) != 8*rules-4*rules/3 {
			t.Errorf("with at most %d matches in a transaction there are %d alerts: %s", most, len(got), diff)
		}
	}
}

// newBounded makes a service that does not run, with a bound of its transactions.
func (r *rig) newBounded(s alerts.Store, most int) *alerts.Service {
	return alerts.New(alerts.Config{Store: s, Limiter: r.limiter, Rules: r.rules.Load, NewID: rand.Text, Observer: r.seen, MaxMatches: most})
}

// TestEventsOfAFailedTransactionCountOnce: those before it stay taken, and all come again.
func TestEventsOfAFailedTransactionCountOnce(t *testing.T) {
	t.Parallel()
	onBothStores(t, catchAll(3), func(t *testing.T, r *rig) {
		var events []alerts.Event
		for range 10 {
			events = append(events, r.exceeded("7", "api", 1))
		}
		s := &transactions{Store: r.store, fail: 3}
		service := r.newBounded(s, 6)
		if err := service.Take(t.Context(), events); !errors.Is(err, errTransaction) || len(s.groups) != 3 {
			t.Errorf("%v after %d transactions", err, len(s.groups))
		}
		for _, a := range r.all() {
			if a.Events != 4 {
				t.Errorf("after two transactions, of two events each: %+v", a)
			}
		}
		if err := service.Take(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		all := r.all()
		if len(all) != 3 || r.seen.count("raised") != 3 {
			t.Errorf("%d alerts, %d raised, want 3", len(all), r.seen.count("raised"))
		}
		for _, a := range all {
			if a.Events != 10 || a.Denied != 10 {
				t.Errorf("10 denials in 10 events: %+v", a)
			}
		}
	})
}
