package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The resources that the processes of a measurement use, from /proc on Linux. On other systems they are 0.

// stat returns a process's parent, and the processor time that it and its ended children have used.
func stat(pid int) (parent int, used time.Duration) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	// The name, in parentheses, may contain spaces. Times are in hundredths of a second.
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(f) < 15 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(f[1])
	for _, ticks := range f[11:15] {
		n, _ := strconv.Atoi(ticks)
		used += time.Duration(n) * 10 * time.Millisecond
	}
	return parent, used
}

// family returns the processor time of a process and all its children.
func family(pid int) (used time.Duration) {
	_, used = stat(pid)
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		child, _ := strconv.Atoi(filepath.Base(dir))
		if parent, its := stat(child); parent == pid {
			used += its
		}
	}
	return used
}

// peakMemory returns the peak resident memory of a process, in MiB.
func peakMemory(pid int) float64 {
	kib, _ := strconv.ParseFloat(strings.TrimSuffix(procField(fmt.Sprintf("/proc/%d/status", pid), "VmHWM", ""), " kB"), 64)
	return kib / 1024
}

// postmaster returns the pid of the process whose children are all others of the server.
func (d *testbed) postmaster() (int, error) {
	var backend int
	if err := d.admin.QueryRow(d.ctx, "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		return 0, err
	}
	parent, _ := stat(backend)
	return parent, nil
}

// walWritten returns how many bytes of write-ahead log the server has written.
func (d *testbed) walWritten() (bytes float64, err error) {
	err = d.admin.QueryRow(d.ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8").Scan(&bytes)
	return bytes, err
}

// execEach runs statements one by one.
func execEach(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%.60s: %w", strings.TrimSpace(sql), err)
		}
	}
	return nil
}

// multiply copies the counter of the first key, as the limiter wrote it, to the keys from (included) to to (excluded). Live
// copies have the same expiry, as in one window; the others expired an hour ago or more.
func multiply(ctx context.Context, conn *pgx.Conn, from, to int, expired bool) error {
	_, err := conn.Exec(ctx, `
INSERT INTO counters (key, name, spec, state, expires_at)
SELECT 'bench:' || lpad(n::text, 10, '0'), c.name, c.spec, c.state,
	CASE WHEN $3 THEN c.expires_at - (10 + n % 24) * 3600000 ELSE c.expires_at END
FROM (SELECT * FROM counters WHERE key = 'bench:0000000000') c, generate_series($1::bigint, $2::bigint - 1) AS n
ON CONFLICT DO NOTHING`, from, to, expired)
	if err != nil {
		return fmt.Errorf("fill counters from %d to %d: %w", from, to, err)
	}
	return nil
}

// relationSizes returns the sizes of the table and of all its indexes, in bytes.
func relationSizes(ctx context.Context, conn *pgx.Conn) (table, indexes float64, err error) {
	err = conn.QueryRow(ctx, "SELECT pg_table_size('counters')::float8, pg_indexes_size('counters')::float8").Scan(&table, &indexes)
	return table, indexes, err
}

// longestLockWait polls, every 20 ms until ctx ends, how long backends have been waiting for the turn to write or for the
// lock of a row. It returns the longest wait in milliseconds. PostgreSQL has waitstart since version 14.
func (d *testbed) longestLockWait(ctx context.Context) <-chan float64 {
	longest := make(chan float64, 1)
	go func() {
		most := 0.0
		defer func() { longest <- most }()
		conn, err := pgx.ConnectConfig(ctx, d.admin.Config())
		if err != nil {
			return
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			var now float64
			err := conn.QueryRow(ctx, `
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - waitstart) * 1000), 0)::float8
FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple', 'advisory')`).Scan(&now)
			if err == nil {
				most = max(most, now)
			}
		}
	}()
	return longest
}
