package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits"
)

var eventSeconds = flag.Int("event-seconds", 0, "seconds of events of the figures of alerts; 0 skips them")

const (
	// eventRate is 100,000 a minute, per second.
	eventRate = 100_000.0 / 60
	// eventsEach is how many alerts a user has; eventsHeavy is how many every hundredth user has, some of which the throttle
	// holds.
	eventsEach, eventsHeavy = 10, 50
	// maxSent is how many alerts the throttle allows a user in an hour.
	maxSent = 20
	// alertsDrain bounds the wait after the last event.
	alertsDrain = 5 * time.Minute
)

var alerterCounts = []int{1, 2}

// alertRun is the result of a run with a number of alerters.
type alertRun struct {
	alerters, events int
	publishing       time.Duration
	// lag and undelivered count the events that were not taken, and the alerts that were not sent, when the last event was
	// published.
	lag         uint64
	undelivered int
	// taken and drained are the times from then until all events were taken, and all alerts sent.
	taken, drained time.Duration

	raised, sent, held, most    int // by the store; most is of one user
	hooked, again, hookedMost   int // by the receiver
	published                   int // to the stream ALERTS
	notSent                     int // deliveries in another state
	alerter, worker, server     time.Duration
	alerterMemory, workerMemory float64
}

// rate returns the events taken per second, from the first to the last.
func (r alertRun) rate() float64 {
	return float64(r.events) / (r.publishing + r.taken).Seconds()
}

// BenchmarkAlerts publishes 100,000 events a minute to one alerter, then to two, and then 20,000 to a limiter that runs
// everything in one process. make alerts-load runs it.
func BenchmarkAlerts(b *testing.B) {
	if *eventSeconds <= 0 {
		b.Skip("make alerts-load runs it")
	}
	d := newTestbed(b, 25*time.Minute, "shared_buffers=1GB", "max_wal_size=8GB")
	if err := d.buildAlerter(); err != nil {
		b.Fatal(err)
	}
	var runs []alertRun
	for _, n := range alerterCounts {
		r, err := d.alertRun(n)
		if err != nil {
			b.Fatalf("%d alerters: %v", n, err)
		}
		fmt.Fprintf(os.Stderr, "%+v\n", r)
		runs = append(runs, r)
	}
	beside, err := d.besideEvents()
	if err != nil {
		b.Fatalf("all in one: %v", err)
	}
	text := alertsText(d.machine(b), runs, beside)
	fmt.Println(text)
	document(b, "<!-- alerts table -->", "<!-- alerts end -->", text)
}

func (d *testbed) alerter() string { return filepath.Join(d.dir, "alerter") }

func (d *testbed) buildAlerter() error {
	if out, err := exec.CommandContext(d.ctx, "go", "build", "-o", d.alerter(), "../cmd/alerter").CombinedOutput(); err != nil {
		return fmt.Errorf("build the alerter: %w\n%s", err, out)
	}
	return nil
}

// alertRun makes one run with fresh data.
func (d *testbed) alertRun(alerters int) (r alertRun, err error) {
	url, drop, err := d.migrated("bench")
	if err != nil {
		return r, err
	}
	defer func() { _ = drop() }()
	if err := d.deleteStreams(limits.AlertStream, limits.EventStream); err != nil {
		return r, err
	}
	h := newHook()
	defer h.Close()
	w, err := d.worker(url)
	if err != nil {
		return r, err
	}
	defer func() { _ = w.stop() }()
	all, err := d.startAlerters(alerters, url, h)
	defer func() {
		for _, p := range all {
			_ = p.stop()
		}
	}()
	if err != nil {
		return r, err
	}
	s := &alertSite{testbed: d, hook: h, worker: w, alerters: all}
	if s.admin, err = pgx.Connect(d.ctx, url); err != nil {
		return r, err
	}
	defer func() { _ = s.admin.Close(context.WithoutCancel(d.ctx)) }()
	return s.run()
}

// startAlerters starts n alerters. After an error it returns those that were started.
func (d *testbed) startAlerters(n int, url string, h *hook) (all []*process, err error) {
	rules, err := h.rules(d.dir)
	if err != nil {
		return nil, err
	}
	for range n {
		p, err := d.start("ready nats=", hookEnv(), d.alerter(), "--nats-url", d.nats, "--http", "off", "--database-url", url, "--alerts", rules)
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// alertSite has the processes of a run.
type alertSite struct {
	*testbed
	hook     *hook
	worker   *process
	alerters []*process
	admin    *pgx.Conn // of the run's database
}

func (s *alertSite) run() (r alertRun, err error) {
	all := crossings(int(eventRate * float64(*eventSeconds) / eventsEach))
	r.alerters, r.events = len(s.alerters), len(all)
	server, err := s.postmaster()
	if err != nil {
		return r, err
	}
	usedBy := func() (alerter, worker, database time.Duration) {
		for _, p := range s.alerters {
			_, used := stat(p.pid)
			alerter += used
		}
		_, worker = stat(s.worker.pid)
		return alerter, worker, family(server)
	}
	alerter, worker, database := usedBy()
	began := time.Now()
	if err := publish(s.ctx, s.js, "run", all, eventRate); err != nil {
		return r, err
	}
	r.publishing = time.Since(began)
	if err := s.drain(&r); err != nil {
		return r, err
	}
	alerterEnd, workerEnd, databaseEnd := usedBy()
	r.alerter, r.worker, r.server = alerterEnd-alerter, workerEnd-worker, databaseEnd-database
	for _, p := range s.alerters {
		r.alerterMemory = max(r.alerterMemory, peakMemory(p.pid))
	}
	r.workerMemory = peakMemory(s.worker.pid)
	return r, s.count(&r)
}

// drain waits until every event was taken, and every alert is held or was sent on both channels.
func (s *alertSite) drain(r *alertRun) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, alertsDrain)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for first := true; ; first = false {
		lag, err := s.eventsPending(ctx)
		if err != nil {
			return err
		}
		if lag == 0 && r.taken == 0 {
			r.taken = time.Since(began)
		}
		undelivered, err := s.undelivered(ctx, r.events)
		if err != nil {
			return err
		}
		if first {
			r.lag, r.undelivered = lag, undelivered
			fmt.Fprintf(os.Stderr, "%d events published in %s, %d of them pending and %d not reported\n", r.events, r.publishing, lag, undelivered)
		}
		if lag == 0 && undelivered == 0 {
			r.drained = time.Since(began)
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d events are pending and %d not reported %s after the last", lag, undelivered, alertsDrain)
		}
	}
}

// eventsPending returns how many events no alerter has taken.
func (s *alertSite) eventsPending(ctx context.Context) (uint64, error) {
	c, err := s.js.Consumer(ctx, limits.EventStream, "alerter")
	if err != nil {
		return 0, err
	}
	i := c.CachedInfo()
	return i.NumPending + uint64(i.NumAckPending), nil
}

// undelivered returns how many alerts are neither held nor sent on both channels. It counts at the receiver and the stream,
// to save the store the work.
func (s *alertSite) undelivered(ctx context.Context, events int) (int, error) {
	var held, waiting int
	err := s.admin.QueryRow(ctx, `
SELECT (SELECT count(*) FROM alerts WHERE notice = 'held' AND digest = ''),
	(SELECT count(*) FROM (SELECT FROM alert_deliveries WHERE state = 'waiting' LIMIT 1) w)`).Scan(&held, &waiting)
	if err != nil {
		return 0, err
	}
	published := 0
	if stream, err := s.js.Stream(ctx, limits.AlertStream); err == nil { // the first alert makes it
		published = int(stream.CachedInfo().State.Msgs)
	}
	hooked, _, _ := s.hook.received()
	return max(events-held-min(hooked, published), waiting), nil
}

// count counts what the store, the receiver and the stream have.
func (s *alertSite) count(r *alertRun) error {
	err := s.admin.QueryRow(s.ctx, `
SELECT count(*), count(*) FILTER (WHERE notice = 'sent'), count(*) FILTER (WHERE notice = 'held'),
	(SELECT count(*) FROM alert_deliveries WHERE state <> 'sent'),
	(SELECT max(n) FROM (SELECT count(*) AS n FROM alerts WHERE notice = 'sent' GROUP BY username) u)
FROM alerts`).Scan(&r.raised, &r.sent, &r.held, &r.notSent, &r.most)
	if err != nil {
		return err
	}
	r.hooked, r.again, r.hookedMost = s.hook.received()
	stream, err := s.js.Stream(s.ctx, limits.AlertStream)
	if err != nil {
		return err
	}
	r.published = int(stream.CachedInfo().State.Msgs)
	return nil
}
