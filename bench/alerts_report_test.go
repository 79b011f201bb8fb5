package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func alertsText(machine string, runs []alertRun, b beside) string {
	var t strings.Builder
	fmt.Fprintf(&t, "%s\n\n", machine)
	t.WriteString("| alerters | events | in | behind at the end: events, alerts | all taken after | all told after | events/s | raised | sent | held |\n" +
		"| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range runs {
		fmt.Fprintf(&t, "| %d | %d | %.1f s | %d, %d | %.1f s | %.1f s | %s | %d | %d | %d |\n", r.alerters, r.events, r.publishing.Seconds(),
			r.lag, r.undelivered, r.taken.Seconds(), r.drained.Seconds(), thousands(r.rate()), r.raised, r.sent, r.held)
	}
	t.WriteString("\n| alerters | to `ALERTS` | to the webhook | came twice | most of one user | alerter: CPU an event | worker | PostgreSQL | " +
		"alerter: peak memory | worker |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range runs {
		each := func(d time.Duration) string { return micros(float64(d.Microseconds()) / float64(r.events)) }
		fmt.Fprintf(&t, "| %d | %d | %d | %d | %d | %s | %s | %s | %.0f MiB | %.0f MiB |\n", r.alerters, r.published, r.hooked, r.again, r.most,
			each(r.alerter), each(r.worker), each(r.server), r.alerterMemory, r.workerMemory)
	}
	fmt.Fprintf(&t, "\nAll in one on SQLite, %s checks/s, %.0f events a minute in turns with none, %d × %s each: median (least–most).\n\n"+
		"| | without events | with | × |\n| --- | --- | --- | --- |\n", thousands(besideAsked), besideRate*60, besideRounds, besideFor)
	b.row(&t, "p50", paced.p50)
	b.row(&t, "p99", paced.p99)
	fmt.Fprintf(&t, "\n%s\n", verdicts(alertVerdicts(runs)))
	return t.String()
}

// row writes a figure with events and without, and their ratio in each round.
func (b beside) row(t *strings.Builder, name string, figure func(paced) float64) {
	var without, with, ratios []float64
	for i := range b.with {
		without, with = append(without, figure(b.without[i])), append(with, figure(b.with[i]))
		ratios = append(ratios, with[i]/max(1, without[i]))
	}
	fmt.Fprintf(t, "| %s | %s | %s | %s |\n", name, spread(without, millis), spread(with, millis), spread(ratios, times))
}

// exact reports whether no alert was lost or sent twice, and no user was sent more than the throttle allows.
func (r alertRun) exact() bool {
	return r.raised == r.events && r.sent+r.held == r.raised && r.most <= maxSent && r.hookedMost <= maxSent &&
		r.hooked == r.sent && r.published == r.sent && r.again == 0 && r.notSent == 0
}

func alertVerdicts(runs []alertRun) (all []verdict) {
	for _, r := range runs {
		name := fmt.Sprintf("alerters: %d; ", r.alerters)
		all = append(all,
			verdict{name + "the backlog drains, after the last event", fmt.Sprintf("%.1f s", r.drained.Seconds()), "≤ 60 s", r.drained <= time.Minute},
			verdict{name + "each alert is told or held, each user of 20 at most", fmt.Sprint(r.exact()), "true", r.exact()},
			verdict{name + "memory of an alerter", fmt.Sprintf("%.0f MiB", r.alerterMemory), "< 256 MiB", r.alerterMemory < 256})
	}
	return all
}

func TestAlertsAreExactOnlyIfAllCountsMatch(t *testing.T) {
	good := alertRun{events: 30, raised: 30, sent: 20, held: 10, most: 20, hookedMost: 20, hooked: 20, published: 20}
	if !good.exact() {
		t.Errorf("%+v is not exact", good)
	}
	for name, spoil := range map[string]func(*alertRun){
		"an event lost":             func(r *alertRun) { r.raised, r.held = 29, 9 },
		"an alert in neither":       func(r *alertRun) { r.held = 9 },
		"one too many for a user":   func(r *alertRun) { r.most = 21 },
		"one too many at the hook":  func(r *alertRun) { r.hookedMost = 21 },
		"a message not at the hook": func(r *alertRun) { r.hooked = 19 },
		"a message that came twice": func(r *alertRun) { r.again = 1 },
		"one too many published":    func(r *alertRun) { r.published = 21 },
		"a delivery that waits":     func(r *alertRun) { r.notSent = 1 },
	} {
		r := good
		if spoil(&r); r.exact() {
			t.Errorf("%s: %+v is exact", name, r)
		}
	}
}

func TestEveryHundredthUserIsThrottled(t *testing.T) {
	alerts := map[int]map[int]bool{}
	for _, c := range crossings(200) {
		if alerts[c.user] == nil {
			alerts[c.user] = map[int]bool{}
		}
		if alerts[c.user][c.policy] {
			t.Fatalf("%+v is there twice", c)
		}
		alerts[c.user][c.policy] = true
	}
	for user, policies := range alerts {
		want := eventsEach
		if user%100 == 0 {
			want = eventsHeavy
		}
		if len(policies) != want {
			t.Errorf("user %d has %d alerts, want %d", user, len(policies), want)
		}
	}
}
