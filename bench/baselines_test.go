package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5/pgxpool"
)

// baseline is a limiter implemented as a database function, which is called once for each check.
type baseline struct {
	schema, call string
}

// hot are table settings for HOT updates, as the limiter's own table of counters has them.
const hot = `WITH (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
	autovacuum_vacuum_cost_delay = 0)`

// systemA counts fixed windows with one upsert, which updates only below the limit.
var systemA = baseline{
	schema: `
CREATE TABLE windows (key text COLLATE "C", starts bigint, used bigint NOT NULL, PRIMARY KEY (key, starts)) ` + hot + `;
CREATE FUNCTION check_limit(k text, most bigint, width bigint, OUT allowed boolean, OUT remaining bigint, OUT resets bigint)
LANGUAGE plpgsql AS $$
DECLARE
	start bigint := floor(extract(epoch FROM clock_timestamp()) / width) * width;
	now_used bigint;
BEGIN
	INSERT INTO windows AS w (key, starts, used) VALUES (k, start, 1)
	ON CONFLICT (key, starts) DO UPDATE SET used = w.used + 1 WHERE w.used < most
	RETURNING used INTO now_used;
	allowed := FOUND;
	remaining := CASE WHEN allowed THEN most - now_used ELSE 0 END;
	resets := start + width;
END $$`,
	call: "SELECT allowed, remaining, resets FROM check_limit($1, 1000000000, 3600)",
}

// systemE has a sliding window: one row for every second with a charge, summed over the window under a lock of the key.
var systemE = baseline{
	schema: `
CREATE TABLE buckets (key text COLLATE "C", second bigint, used bigint NOT NULL, PRIMARY KEY (key, second)) ` + hot + `;
CREATE FUNCTION check_limit(k text, most bigint, width bigint, OUT allowed boolean, OUT remaining bigint, OUT resets bigint)
LANGUAGE plpgsql AS $$
DECLARE
	this bigint;
	used_before bigint;
BEGIN
	PERFORM pg_advisory_xact_lock(hashtextextended(k, 0));
	this := floor(extract(epoch FROM clock_timestamp()));
	SELECT coalesce(sum(used), 0), coalesce(min(second), this) + width INTO used_before, resets
	FROM buckets WHERE key = k AND second > this - width;
	allowed := used_before < most;
	remaining := most - used_before;
	IF allowed THEN
		INSERT INTO buckets AS b (key, second, used) VALUES (k, this, 1)
		ON CONFLICT (key, second) DO UPDATE SET used = b.used + 1;
		remaining := remaining - 1;
	END IF;
END $$`,
	call: "SELECT allowed, remaining, resets FROM check_limit($1, 1000000000, 3600)",
}

// maxConnections bounds the pool, as in production: more connections are slower.
const maxConnections = 64

// run measures the function, without NATS in between, once for both generators.
func (s baseline) run(d *testbed, l load) (sample, error) {
	m, err := s.measure(d, l)
	return sample{byRequest: m, byBench: m}, err
}

func (s baseline) measure(d *testbed, l load) (m measured, err error) {
	url, drop, err := d.database("bench")
	if err != nil {
		return m, err
	}
	defer func() { _ = drop() }()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return m, err
	}
	config.MaxConns = int32(min(maxConnections, l.inFlight))
	config.MinConns = config.MaxConns
	// The plans of the functions are made once, when the table is still empty, and would use sequential scans.
	config.ConnConfig.RuntimeParams["enable_seqscan"] = "off"
	ctx, cancel := context.WithTimeout(d.ctx, d.warmup+d.measure+patience)
	defer cancel()
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return m, err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, s.schema); err != nil {
		return m, fmt.Errorf("create function: %w", err)
	}
	return s.load(ctx, pool, d, l)
}

// load runs a closed loop like that of limiter bench, over a pool.
func (s baseline) load(ctx context.Context, pool *pgxpool.Pool, d *testbed, l load) (m measured, err error) {
	var mu sync.Mutex
	sum := hdrhistogram.New(1, patience.Microseconds(), 3)
	elapsed := closedLoop(ctx, l.inFlight, d.warmup, d.measure, func(_ int, phase *phase) {
		took, failed := hdrhistogram.New(1, patience.Microseconds(), 3), error(nil)
		for !phase.over() && failed == nil {
			key := fmt.Sprintf("bench:%010d", rand.IntN(l.keys))
			var allowed bool
			var remaining, resets int64
			sent := time.Now()
			failed = pool.QueryRow(ctx, s.call, key).Scan(&allowed, &remaining, &resets)
			if phase.measuring() && failed == nil {
				failed = took.RecordValue(max(1, time.Since(sent).Microseconds()))
			}
		}
		mu.Lock()
		defer mu.Unlock()
		sum.Merge(took)
		err = errors.Join(err, failed)
	})
	n := sum.TotalCount()
	return measured{
		perSecond: float64(n) / elapsed.Seconds(), checks: n,
		p50: float64(sum.ValueAtQuantile(50)), p99: float64(sum.ValueAtQuantile(99)),
	}, err
}
