package alerts_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// days is how many days each walk of TestDaysAcrossDSTChange has.
var days = flag.Int("days", 1, "how many days the walks of the tests of alerts have")

// walk simulates some days in a zone. The clock goes from event to event, and from full hour to full hour.
type walk struct {
	*rig
	zone   *time.Location
	random *rand.Rand
	// process is nil while no process runs; events wait then.
	process *running
	waiting []alerts.Event
	deaths  int
	// answers are the answers of the throttle's limiter.
	answers *answers
	// denied counts denials by user and policy, digested has the alerts that digests included, and messages what was sent.
	denied             map[string]int64
	digested, messages map[string]bool
}

// answers is a limiter that records when each of its charges was first answered.
type answers struct {
	alerts.Limiter
	now func() time.Time
	mu  sync.Mutex
	of  map[string]answer // by id
}

// answer is a charge of a key of the throttle; back is when it was given back, zero for not.
type answer struct {
	key      string
	allowed  bool
	at, back time.Time
}

func (a *answers) Consume(ctx context.Context, r limits.Request) (*limits.Reply, error) {
	reply, err := a.Limiter.Consume(ctx, r)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if before, is := a.of[r.ID]; !is || before.allowed != reply.Allowed {
		a.of[r.ID] = answer{key: r.Limits[0].Key, allowed: reply.Allowed, at: a.now()}
	}
	return reply, nil
}

func (a *answers) Settle(ctx context.Context, id string, cost int64) (*limits.Reply, error) {
	reply, err := a.Limiter.Settle(ctx, id, cost)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if given := a.of[id]; given.back.IsZero() {
		given.back = a.now()
		a.of[id] = given
	}
	return reply, nil
}

// charged counts the charges of a key that were in force at a time and younger than d.
func (a *answers) charged(key string, at time.Time, d time.Duration) (n int) {
	for _, c := range a.of {
		if c.key == key && c.allowed && !c.at.After(at) && at.Sub(c.at) < d && (c.back.IsZero() || !c.back.Before(at)) {
			n++
		}
	}
	return n
}

// rulesOf returns a rule that is quiet at night, one that is quiet around the hour that a change of the clock skips or repeats,
// and one that is never quiet. Policies begin with the rules' names.
func rulesOf(zone string) string {
	return fmt.Sprintf(`rules: [
		{name: night, match: {policy: "night*"}, threshold: {denials: 1}, channels: [log], quietHours: [
			{days: [mon-fri], from: "22:00", to: "07:00", timezone: %[1]q}, {days: [sat, sun], from: "20:30", to: "09:15", timezone: %[1]q}]},
		{name: gap, match: {policy: "gap*"}, threshold: {denials: 1}, channels: [log], quietHours: [{from: "01:45", to: "02:45", timezone: %[1]q}]},
		{name: ever, match: {policy: "ever*"}, threshold: {denials: 1}, channels: [log]}]`, zone)
}

// quiet reports by the local time whether a rule is quiet, independently of the code under test.
func (w *walk) quiet(rule string, at time.Time) bool {
	local := at.In(w.zone)
	clock, day := local.Format("15:04"), local.Weekday()
	weekend := func(d time.Weekday) bool { return d == time.Saturday || d == time.Sunday }
	switch rule {
	case "night":
		begin, end := "22:00", "07:00"
		if weekend(day) {
			begin = "20:30"
		}
		if weekend((day + 6) % 7) { // of the evening before
			end = "09:15"
		}
		return clock >= begin || clock < end
	case "gap":
		return clock >= "01:45" && clock < "02:45"
	}
	return false
}

// TestDaysAcrossDSTChange simulates days in which the clock changes, with processes that die now
// and then and are away for hours. No alert may be sent in its quiet hours; each held alert must
// be in one digest, the first that may include it; no user may be sent more than 20 in an hour;
// and no denial may be lost.
func TestDaysAcrossDSTChange(t *testing.T) {
	t.Parallel()
	for seed, c := range []struct{ zone, change string }{
		{"Europe/Berlin", "2026-10-25"}, {"Europe/Berlin", "2027-03-28"},
		{"America/New_York", "2026-11-01"}, {"America/New_York", "2027-03-14"},
		{"Australia/Lord_Howe", "2026-10-04"}, {"Australia/Lord_Howe", "2027-04-04"}, // by half an hour
	} {
		t.Run(strings.ReplaceAll(c.zone, "/", "-")+"-"+c.change, func(t *testing.T) {
			t.Parallel()
			zone, err := time.LoadLocation(c.zone)
			if err != nil {
				t.Fatal(err)
			}
			change, err := time.ParseInLocation(time.DateOnly, c.change, zone)
			if err != nil {
				t.Fatal(err)
			}
			if _, before := change.Zone(); before == offset(change.AddDate(0, 0, 1)) {
				t.Fatalf("the clock of %s does not change on %s", c.zone, c.change)
			}
			w := &walk{rig: newRig(t, rulesOf(c.zone)), zone: zone, random: rand.New(rand.NewPCG(uint64(seed), 1)),
				denied: map[string]int64{}, digested: map[string]bool{}, messages: map[string]bool{}}
			w.answers = &answers{Limiter: w.limiter, now: w.clock.now, of: map[string]answer{}}
			w.advance(change.Add(-time.Duration(*days) * 12 * time.Hour).Sub(w.clock.now()))
			w.walk(w.clock.now().Add(time.Duration(*days) * 24 * time.Hour))
		})
	}
}

func offset(t time.Time) int {
	_, seconds := t.Zone()
	return seconds
}

func (w *walk) walk(end time.Time) {
	for w.clock.now().Before(end) {
		w.hours(time.Duration(w.random.Int64N(int64(time.Hour))))
		w.happens()
		switch {
		case w.process == nil && w.random.IntN(3) > 0: // somebody is away for hours
		case w.process == nil || w.random.IntN(12) > 0:
			w.works()
		default:
			w.dies()
		}
		w.sent()
	}
	w.works()
	w.hours(24 * time.Hour) // each night ends
	w.check()
}

// hours lets time pass. The jobs of each full hour run up to 20 s early or late by the store's clock.
func (w *walk) hours(d time.Duration) {
	end := w.clock.now().Add(d)
	for {
		hour := w.clock.now().Truncate(time.Hour).Add(time.Hour + time.Duration(w.random.IntN(40)-20)*time.Second)
		if hour.After(end) {
			break
		}
		w.advance(max(0, hour.Sub(w.clock.now())))
		if w.process != nil {
			w.digest()
		}
		w.advance(time.Minute)
	}
	w.advance(max(0, end.Sub(w.clock.now())))
}

// happens makes some events, from time to time more than the throttle allows in an hour.
func (w *walk) happens() {
	n := 1 + w.random.IntN(4)
	if w.random.IntN(10) == 0 {
		n = 30
	}
	user := fmt.Sprint(w.random.IntN(3))
	for range n {
		policy := fmt.Sprint([]string{"night", "gap", "ever"}[w.random.IntN(3)], w.random.IntN(20))
		e := w.exceeded(user, policy, 1+w.random.Int64N(9))
		w.denied[user+" "+policy] += e.Denied
		w.waiting = append(w.waiting, e)
	}
}

// works has a process take the waiting events and handle their alerts.
func (w *walk) works() {
	if w.process == nil {
		w.process = w.runOver(w.store, w.answers)
	}
	if _, err := w.process.Resolve(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.take(w.process, w.waiting...)
	w.waiting = nil
	end := time.After(patience)
	for _, a := range w.recent() {
		for a.Notice == alerts.Pending {
			_, changed := w.seen.look("")
			now, _, err := w.store.Alert(w.t.Context(), a.ID)
			if err != nil {
				w.t.Fatal(err)
			}
			if now.Notice != alerts.Pending {
				break
			}
			select {
			case <-changed:
			case <-end:
				w.t.Fatalf("%s is pending yet", a.ID)
			}
		}
	}
}

// recent returns the alerts that may still be held: the longest night has 13 hours.
func (w *walk) recent() (all []alerts.Alert) {
	w.t.Helper()
	since := w.clock.now().Add(-14 * time.Hour).UnixMilli()
	for f := (alerts.AlertFilter{Max: 100}); ; {
		page, err := w.store.Alerts(w.t.Context(), f)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, page...)
		if len(page) < f.Max || page[len(page)-1].RaisedAt < since {
			return all
		}
		f.Before, f.BeforeID = page[len(page)-1].RaisedAt, page[len(page)-1].ID
	}
}

// dies makes the process die at one of its next steps. The events that it did not take wait.
func (w *walk) dies() {
	w.process.stop()
	w.process = nil
	m := &mortal{Store: w.store, limiter: w.answers, fuse: newFuse(w.random)}
	s := w.runOver(m, m)
	for i := 0; s.Take(w.t.Context(), w.waiting[i%len(w.waiting):][:1]) == nil; i++ {
	}
	s.stop()
	w.advance(afterDeath)
	w.deaths++
}

// digest runs the job of digests, and checks that it includes exactly the alerts that may be sent now.
func (w *walk) digest() {
	now := w.clock.now()
	at := now.Add(alerts.DigestLead)
	var want, users []string
	for _, a := range w.recent() {
		if a.Notice == alerts.Held && a.Digest == "" && !w.quiet(a.Rule, at) {
			want, users = append(want, a.ID), append(users, a.User)
		}
	}
	slices.Sort(users)
	users = slices.Compact(users)
	note, err := w.process.Digest(w.t.Context())
	if text := fmt.Sprintf("%d digests of %d alerts", len(users), len(want)); err != nil || note != text {
		w.t.Errorf("at %s: %s, %v; want %s", now.In(w.zone), note, err, text)
	}
	for _, a := range w.recent() {
		if a.Digest != "" && !w.digested[a.ID] && !slices.Contains(want, a.ID) {
			w.t.Errorf("at %s a digest tells of %+v", now.In(w.zone), a)
		}
		w.digested[a.ID] = a.Digest != ""
	}
	w.sent()
}

// sent checks the deliveries in the outbox.
func (w *walk) sent() {
	for _, d := range w.send("log") {
		if w.messages[d.ID] {
			w.t.Errorf("%s is sent twice", d.ID)
		}
		w.messages[d.ID] = true
		if d.Message.Kind != alerts.KindDigest {
			continue
		}
		data, want, denied := digestOf(w.t, d), int64(0), int64(0)
		for _, a := range w.recent() {
			if a.Digest == data.Digest && a.User == data.User {
				want, denied = want+1, denied+a.Denied
			}
		}
		for _, p := range data.Policies {
			want, denied = want-p.Alerts, denied-p.Denied
		}
		if want != 0 || denied != 0 {
			w.t.Errorf("a digest lacks %d alerts with %d denials: %+v", want, denied, data)
		}
	}
}

// check checks the totals of the whole walk.
func (w *walk) check() {
	all, notices, denied := w.all(), map[string]int{}, map[string]int64{}
	for _, a := range all {
		what := strings.TrimSpace(string(a.Notice) + " " + a.Reason)
		notices[what]++
		denied[a.User+" "+a.Policy] += a.Denied
		at := time.UnixMilli(a.NoticeAt)
		if quiet := w.quiet(a.Rule, at); quiet != (what == "held quiet hours") {
			w.t.Errorf("%s of %s is %s at %s", a.ID, a.Rule, what, at.In(w.zone))
		}
		if what == "sent" && !w.answers.of[a.EventID].allowed {
			w.t.Errorf("%s is sent, and was never charged", a.ID)
		}
		if sent := w.messages[a.ID+".raised/log"]; sent != (what == "sent") || sent == (a.Digest != "") {
			w.t.Errorf("%s is %s, in digest %q, and was sent: %t", a.ID, what, a.Digest, sent)
		}
	}
	for id, given := range w.answers.of { // the throttle may be late by a 60th
		if n := w.answers.charged(given.key, given.at, time.Hour+time.Minute); !given.allowed && n < 20 {
			w.t.Errorf("%s is refused at %s, when %d were charged to %s", id, given.at, n, given.key)
		}
	}
	for user := range 3 {
		toldWithin(w.t, slices.DeleteFunc(slices.Clone(all), func(a alerts.Alert) bool { return a.User != fmt.Sprint(user) }), 20, time.Hour)
	}
	for what, n := range w.denied {
		if denied[what] != n {
			w.t.Errorf("%s: %d denials in alerts, want %d", what, denied[what], n)
		}
	}
	w.t.Logf("%d alerts: %v; %d deaths", len(all), notices, w.deaths)
}
