package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// dbRoles is a database with the roles of deploy/roles.sql. Roles are shared by the whole server, so each test has names of its
// own for them.
type dbRoles struct {
	url, suffix string
	owner       *pgx.Conn
}

func grantRoles(t *testing.T) *dbRoles {
	t.Helper()
	return grantRolesAt(t, testenv.Postgres(t))
}

func grantRolesAt(t *testing.T, at string) *dbRoles {
	t.Helper()
	text, err := os.ReadFile("../../deploy/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	r := &dbRoles{url: at}
	u, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	r.suffix = strings.TrimPrefix(u.Path, "/limits_test")
	if r.owner, err = pgx.Connect(t.Context(), r.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.close(t) })
	sql := string(text)
	for _, role := range []string{"limits_worker", "limits_alerter", "limits_reader"} {
		sql = strings.ReplaceAll(sql, role, role+r.suffix)
	}
	for range 2 { // the second time is that after the next migration
		if _, err := r.owner.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r *dbRoles) close(t *testing.T) {
	for _, role := range []string{"limits_worker", "limits_alerter", "limits_reader"} {
		if _, err := r.owner.Exec(context.Background(), "DROP OWNED BY "+role+r.suffix+"; DROP ROLE "+role+r.suffix); err != nil {
			t.Error(err)
		}
	}
	_ = r.owner.Close(context.Background())
}

// as returns the URL of a role.
func (r *dbRoles) as(t *testing.T, role string) string {
	t.Helper()
	if _, err := r.owner.Exec(t.Context(), "ALTER ROLE "+role+r.suffix+" PASSWORD 'secret'"); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role+r.suffix, "secret")
	return u.String()
}

// TestLeastPrivilege uses every verb that touches a table with a worker, and runs every job with an alerter.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	o := options(t)
	db := grantRoles(t)
	o.DatabaseURL = db.as(t, "limits_worker")
	o.CleanupEvery, o.UsageMinuteDays, o.UsageDays, o.RequestDays, o.JobDays = time.Minute, 1, 1, 1, 1
	o.KeyPrefix, o.Policies = "lim", writeFile(t, strings.Replace(hashing(3), "|hash", "", 1))
	server := testenv.NATS(t)
	o.NATSURL = server.ClientURL()
	worker := running(t, Run, o)
	o.DatabaseURL, o.AlertDays = db.as(t, "limits_alerter"), 1
	o.Alerts = writeFile(t, "rules:\n  - {name: all, threshold: {denials: 1}, channels: [nats]}\n")
	alerter := running(t, RunAlerter, o).log
	nc := testenv.Connect(t, o.NATSURL)
	u := &user{Conn: nc}
	raised := u.hears(t, limits.EventAlertRaised)
	worker.use(t)
	client := limits.NewClient(nc, limits.Timeout(patience))
	key, err := client.CreateKey(t.Context(), limits.CreateKeyRequest{User: "7", Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	u.asks(t, limits.SubjectVerify, `{"apiKey":"`+key.APIKey+`"}`, `"valid":true`)
	u.asks(t, limits.SubjectKeysRevoke, `{"id":"`+key.Key.ID+`"}`, `"revokedAt"`)
	u.asks(t, limits.SubjectOverridesSet, `{"policy":"p","name":"l","subject":"user:7","limit":9,"reason":"r"}`, `"limit":9`)
	u.asks(t, limits.SubjectOverridesDelete, `{"policy":"p","name":"l","subject":"user:7"}`, `true`)
	u.asks(t, limits.SubjectOverridesList, `{}`, `"overrides":[]`)
	u.asks(t, limits.SubjectTop, `{}`, `"rows"`)
	u.asks(t, limits.SubjectUsageReport, `{"report":"traffic"}`, `"since"`)
	list, err := client.ListJobs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range list.Jobs {
		runUntilDone(t, client, j.Name)
	}
	u.asks(t, limits.SubjectAlertsTest, `{"channel":"nats"}`, `"channels":["nats"]`)
	u.asks(t, limits.SubjectAlertsSilence, `{"user":"7","for":60000,"reason":"r"}`, `"user":"7"`)
	u.asks(t, limits.SubjectAlertsChannels, `{}`, `"nats"`)
	told(t, raised, alerter)
	if list, err := client.ListAlerts(t.Context(), limits.ListAlertsRequest{}); err != nil || len(list.Alerts) == 0 || list.Alerts[0].Notice != "sent" {
		t.Errorf("the alert that was told: %+v, %v\n%s", list, err, alerter)
	}
	for who, log := range map[string]*watcher{"worker": worker.log, "alerter": alerter} {
		if text := log.String(); strings.Contains(text, "permission denied") {
			t.Errorf("the %s lacks a right:\n%s", who, text)
		}
	}
}

// TestRolesInASchemaOfItsOwn beside another program that also migrates with goose: migrations, a worker and an alerter work, and
// the other's schema has its grants as before.
func TestRolesInASchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	at := testenv.EmptyPostgres(t)
	other := database(t, at)
	if _, err := other.Exec(t.Context(), `
CREATE TABLE goose_db_version (version_id bigint, is_applied bool, tstamp timestamp);
INSERT INTO goose_db_version VALUES (10, true, now());
GRANT CREATE ON SCHEMA public TO PUBLIC;
CREATE SCHEMA quotas`); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery += "&search_path=quotas"
	if _, err := MigrateUp(t.Context(), u.String()); err != nil {
		t.Fatal(err)
	}
	db := grantRolesAt(t, u.String())
	o := options(t)
	o.NATSURL = testenv.NATS(t).ClientURL()
	o.Alerts = writeFile(t, "rules:\n  - {name: all, threshold: {denials: 1}, channels: [nats]}\n")
	o.DatabaseURL = db.as(t, "limits_worker")
	worker := running(t, Run, o)
	o.DatabaseURL = db.as(t, "limits_alerter")
	alerter := running(t, RunAlerter, o)
	raised := (&user{Conn: testenv.Connect(t, o.NATSURL)}).hears(t, limits.EventAlertRaised)
	worker.use(t)
	told(t, raised, alerter.log)
	var kept bool
	if err := other.QueryRow(t.Context(), `SELECT has_schema_privilege('limits_reader`+db.suffix+`', 'public', 'CREATE')`).Scan(&kept); err != nil || !kept {
		t.Errorf("the other program's schema lost a grant: %v", err)
	}
}

// TestStartNamesMissingPrivileges: otherwise the limiter would start, and make every decision without the store.
func TestStartNamesMissingPrivileges(t *testing.T) {
	t.Parallel()
	db := grantRoles(t)
	nats := testenv.NATS(t).ClientURL()
	refused := func(run func(context.Context, Options, *slog.Logger) error, role string, want ...string) {
		t.Helper()
		o := options(t)
		o.DatabaseURL, o.NATSURL = db.as(t, role), nats
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		log := newWatcher()
		go func() {
			select {
			case <-log.ready:
				cancel()
			case <-ctx.Done():
			}
		}()
		err := fmt.Sprint(run(ctx, o, slog.New(log)))
		for _, part := range append(want, "deploy/roles.sql") {
			if !strings.Contains(err, part) {
				t.Errorf("a start as %s: %s; want %q", role, err, part)
			}
		}
	}
	refused(Run, "limits_alerter", `"limits_alerter`+db.suffix+`" lacks SELECT on api_keys, INSERT on counters`, "INSERT on journal", "INSERT on outbox", "grants to limits_worker")
	refused(RunAlerter, "limits_worker", "INSERT on alert_events", "grants to limits_alerter")
	for _, r := range []string{"SELECT ON override_removals", "INSERT ON journal", "UPDATE ON outbox", "SELECT ON goose_db_version"} {
		if _, err := db.owner.Exec(t.Context(), "REVOKE "+r+" FROM limits_worker"+db.suffix); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(r, "goose_db_version") {
			refused(Run, "limits_worker", strings.Replace(r, "ON", "on", 1))
		}
	}
	refused(Run, "limits_worker", "permission denied for table goose_db_version")
}

// runUntilDone runs a job. The job may be running by its schedule, or take longer than the answer may, so it is run again after
// a pause until it is done.
func runUntilDone(t *testing.T, client *limits.Client, job string) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		r, err := client.RunJob(t.Context(), job)
		switch {
		case err == nil && r.Run.Outcome == "done":
			return
		case err == nil && r.Run.Outcome == "failed", time.Now().After(end):
			t.Fatalf("%s: %+v, %v", job, r, err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// TestPrivilegesOfRoles checks what each role may do with each table. S is SELECT, I INSERT, U UPDATE, D DELETE, s SELECT of some
// columns.
func TestPrivilegesOfRoles(t *testing.T) {
	t.Parallel()
	r := grantRoles(t)
	rows, err := r.owner.Query(t.Context(), `SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][3]string{ // worker, alerter, reader
		"counters": {"SIUD", "SUD", "S"}, "receipts": {"SIUD", "SUD", ""}, "outbox": {"SIUD", "s", ""}, "outbox_refused": {"SID", "S", ""},
		"journal": {"SID", "S", ""}, "override_removals": {"SID", "SID", ""},
		"usage_counts": {"SIUD", "SIUD", "S"}, "usage_requests": {"SIUD", "SUD", "S"},
		"api_keys": {"SIU", "sD", "s"}, "overrides": {"SIUD", "SUD", "S"}, "override_revision": {"SU", "SU", "S"},
		"key_revision": {"SU", "SU", ""},
		"job_runs":     {"SIUD", "SIUD", "S"}, "goose_db_version": {"S", "S", "S"},
		"alert_events": {"", "SIUD", ""}, "alert_groups": {"", "SIUD", ""}, "alerts": {"", "SIUD", "S"},
		"alert_deliveries": {"", "SIUD", "s"}, "alert_channels": {"", "SIUD", ""}, "alert_silences": {"", "SIUD", "S"},
		"alert_poison": {"", "SIUD", ""},
	}
	for _, table := range tables {
		for i, role := range []string{"limits_worker", "limits_alerter", "limits_reader"} {
			if got := r.rights(t, role+r.suffix, table); got != want[table][i] {
				t.Errorf("%s on %s: %q, want %q", role, table, got, want[table][i])
			}
		}
		delete(want, table)
	}
	if len(want) > 0 {
		t.Errorf("no such tables: %v", want)
	}
}

const rightsSQL = `
SELECT concat(CASE WHEN has_table_privilege($1, $2, 'SELECT') THEN 'S'
		WHEN has_any_column_privilege($1, $2, 'SELECT') THEN 's' END,
	CASE WHEN has_any_column_privilege($1, $2, 'INSERT') THEN 'I' END, CASE WHEN has_any_column_privilege($1, $2, 'UPDATE') THEN 'U' END,
	CASE WHEN has_table_privilege($1, $2, 'DELETE') THEN 'D' END, CASE WHEN has_table_privilege($1, $2, 'TRUNCATE') THEN 'T' END)`

func (r *dbRoles) rights(t *testing.T, role, table string) (rights string) {
	t.Helper()
	if err := r.owner.QueryRow(t.Context(), rightsSQL, role, table).Scan(&rights); err != nil {
		t.Fatal(err)
	}
	return rights
}

// TestRolesAreDeniedUnneededAccess: each statement is tried with a connection of the role.
func TestRolesAreDeniedUnneededAccess(t *testing.T) {
	t.Parallel()
	r := grantRoles(t)
	for role, sql := range map[string]string{
		"limits_alerter": `SELECT hash FROM api_keys`, "limits_reader": `SELECT hash FROM api_keys`,
		"limits_worker": `CREATE TABLE mine ()`,
	} {
		conn, err := pgx.Connect(t.Context(), r.as(t, role))
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Exec(t.Context(), sql)
		var denied *pgconn.PgError
		if !errors.As(err, &denied) || denied.Code != "42501" {
			t.Errorf("%s: %s: %v", role, sql, err)
		}
		_ = conn.Close(t.Context())
	}
}
