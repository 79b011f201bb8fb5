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
	// eventRate is 100,000 a minute.
	eventRate = 100_000.0 / 60
	// eventsEach and eventsHeavy are the alerts of a user, and of every hundredth, of whom the throttle holds some back.
	eventsEach, eventsHeavy = 10, 50
	// mostTold is what a user is told of in an hour.
	mostTold = 20
	// alertsDrain bounds the time after the last event.
	alertsDrain = 5 * time.Minute
)

var alerterCounts = []int{1, 2}

// alertRun is what became of the events beside so many alerters.
type alertRun struct {
	alerters, events int
	publishing       time.Duration
	// lag and undelivered are what had not been taken, and not been sent, when the last event was published.
	lag         uint64
	undelivered int
	// taken and drained are how long after that all was.
	taken, drained time.Duration

	raised, sent, held, most    int // by the store; most is of one user
	hooked, again, hookedMost   int // by the receiver
	published                   int // to the stream ALERTS
	notSent                     int // deliveries in another state
	alerter, worker, server     time.Duration
	alerterMemory, workerMemory float64
}

// rate is how many events were taken a second, from the first to the last.
func (r alertRun) rate() float64 {
	return float64(r.events) / (r.publishing + r.taken).Seconds()
}

// BenchmarkAlerts publishes 100,000 events a minute beside one alerter and two, and then beside a limiter that is all in
// one; make alerts-load runs it.
func BenchmarkAlerts(b *testing.B) {
	if *eventSeconds <= 0 {
		b.Skip("make alerts-load runs it")
	}
	d := newBed(b, 25*time.Minute, "shared_buffers=1GB", "max_wal_size=8GB")
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

func (d *bed) alerter() string { return filepath.Join(d.dir, "alerter") }

func (d *bed) buildAlerter() error {
	if out, err := exec.CommandContext(d.ctx, "go", "build", "-o", d.alerter(), "../cmd/alerter").CombinedOutput(); err != nil {
		return fmt.Errorf("build the alerter: %w\n%s", err, out)
	}
	return nil
}

// alertRun is one run on servers that stay and data that is fresh.
func (d *bed) alertRun(alerters int) (r alertRun, err error) {
	url, drop, err := d.migrated("bench")
	if err != nil {
		return r, err
	}
	defer func() { _ = drop() }()
	if err := d.forgetAlerts(); err != nil {
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
	s := &alertSite{bed: d, hook: h, worker: w, alerters: all}
	if s.admin, err = pgx.Connect(d.ctx, url); err != nil {
		return r, err
	}
	defer func() { _ = s.admin.Close(context.WithoutCancel(d.ctx)) }()
	return s.run()
}

// startAlerters gives those that started, even after an error.
func (d *bed) startAlerters(n int, url string, h *hook) (all []*process, err error) {
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

// alertSite is what a run is made on.
type alertSite struct {
	*bed
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

// drain waits until every event was taken and every alert is held or was told of on both channels.
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
		left, err := s.undelivered(ctx, r.events)
		if err != nil {
			return err
		}
		if first {
			r.lag, r.undelivered = lag, left
			fmt.Fprintf(os.Stderr, "%d events published in %s, %d of them wait and %d are not told of\n", r.events, r.publishing, lag, left)
		}
		if lag == 0 && left == 0 {
			r.drained = time.Since(began)
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d events wait and %d are not told of %s after the last", lag, left, alertsDrain)
		}
	}
}

// eventsPending is how many events no alerter has taken.
func (s *alertSite) eventsPending(ctx context.Context) (uint64, error) {
	c, err := s.js.Consumer(ctx, limits.EventStream, "alerter")
	if err != nil {
		return 0, err
	}
	i := c.CachedInfo()
	return i.NumPending + uint64(i.NumAckPending), nil
}

// undelivered is how many alerts are neither held nor told of on both channels. Those who were told are asked, because
// the store has other work.
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
	hooked, _, _ := s.hook.told()
	return max(events-held-min(hooked, published), waiting), nil
}

// count looks at what the store, the receiver and the stream have.
func (s *alertSite) count(r *alertRun) error {
	err := s.admin.QueryRow(s.ctx, `
SELECT count(*), count(*) FILTER (WHERE notice = 'sent'), count(*) FILTER (WHERE notice = 'held'),
	(SELECT count(*) FROM alert_deliveries WHERE state <> 'sent'),
	(SELECT max(n) FROM (SELECT count(*) AS n FROM alerts WHERE notice = 'sent' GROUP BY username) u)
FROM alerts`).Scan(&r.raised, &r.sent, &r.held, &r.notSent, &r.most)
	if err != nil {
		return err
	}
	r.hooked, r.again, r.hookedMost = s.hook.told()
	stream, err := s.js.Stream(s.ctx, limits.AlertStream)
	if err != nil {
		return err
	}
	r.published = int(stream.CachedInfo().State.Msgs)
	return nil
}
