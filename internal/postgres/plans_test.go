package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/usage"
)

type query struct {
	name, sql string
	plan      []string
}

// queries are all queries of this package, with what their plans must contain.
var queries = []query{
	{"begin", beginSQL, nil},
	{"commit", commitSQL, nil},
	{"clock", clockSQL, []string{"Result"}},
	{"take the turn", turnSQL, []string{"Result"}},
	{"read journal", readJournalSQL, []string{"Index Scan using journal_pkey on journal"}},
	{"begin with the journal", readWholeJournalSQL, []string{"Limit", "Recursive Union", "Limit", "Index Only Scan Backward using journal_pkey on journal journal_1", "WorkTable Scan on search s", "Aggregate", "CTE Scan on search", "Index Scan using journal_pkey on journal"}},
	{"first row of the journal", firstOfJournalSQL, []string{"Aggregate", "Recursive Union", "Limit", "Index Only Scan Backward using journal_pkey on journal", "WorkTable Scan on search s", "CTE Scan on search"}},
	{"read counters", readCountersSQL, []string{"Nested Loop", "ProjectSet", "Result", "Limit", "Index Scan using counters_pkey on counters"}},
	{"next millisecond", nextMillisecondSQL, []string{"Result"}},
	{"write to the journal", appendSQL, []string{"Insert on journal", "Limit", "Index Scan using journal_pkey on journal journal_1", "Result"}},
	{"update counters", updateCountersSQL, []string{"Update on counters c", "Nested Loop", "Subquery Scan on u", "ProjectSet", "Result", "Tid Scan on counters c"}},
	{"fold counters", foldCountersSQL, []string{"Insert on counters", "ProjectSet", "Result"}},
	{"trim the journal", deleteJournalSQL, []string{"Delete on journal", "Index Scan using journal_pkey on journal"}},
	{"read receipts", readReceiptsSQL, []string{"Nested Loop", "Function Scan on unnest i", "Limit", "Index Scan using receipts_pkey on receipts"}},
	{"remove stale receipts", deleteReceiptsSQL, []string{"Delete on receipts", "Index Scan using receipts_pkey on receipts"}},
	{"insert receipts", insertReceiptsSQL, []string{"Insert on receipts", "Function Scan on unnest"}},
	{"insert events", insertEventsSQL, []string{"Insert on outbox", "Function Scan on unnest"}},
	{"counters of a key", countersOfKeySQL, []string{"Limit", "Index Scan using counters_pkey on counters"}},
	{"list counters", listCountersSQL, []string{"Limit", "Index Scan using counters_pkey on counters"}},
	{"count counters", countCountersSQL, []string{"Aggregate", "Index Only Scan using counters_pkey on counters"}},
	{"ids of a span", idsOfSpanSQL, []string{"Limit", "Index Only Scan using counters_pkey on counters"}},
	{"count those", countThoseSQL, []string{"Aggregate", "Nested Loop", "ProjectSet", "Result", "Limit", "Index Only Scan using counters_pkey on counters"}},
	{"delete counters", deleteCountersSQL, []string{"Delete on counters", "Nested Loop", "ProjectSet", "Result", "Limit", "Index Scan using counters_pkey on counters counters_1", "Tid Scan on counters"}},
	{"expired counters", expiredCountersSQL, []string{"Limit", "Index Scan using counters_expires_at on counters"}},
	{"remove counters", removeCountersSQL, []string{"Delete on counters", "LockRows", "Tid Scan on counters counters_1", "Tid Scan on counters"}},
	{"expired receipts", expiredReceiptsSQL, []string{"Limit", "Index Scan using receipts_expires_at on receipts"}},
	{"remove receipts", removeReceiptsSQL, []string{"Delete on receipts", "LockRows", "Tid Scan on receipts receipts_1", "Tid Scan on receipts"}},
	{"read outbox", readOutboxSQL, []string{"Limit", "Limit", "Index Only Scan using outbox_pkey on outbox outbox_1", "LockRows", "Index Scan using outbox_pkey on outbox"}},
	{"delete outbox", deleteOutboxSQL, []string{"Delete on outbox", "Index Scan using outbox_pkey on outbox"}},
	{"count outbox", countOutboxSQL, nil},
	{"insert key", insertKeySQL, nil},
	{"read keys", readKeysSQL, []string{"Index Scan using api_keys_pkey on api_keys", "Seq Scan on key_revision"}},
	{"list keys", listKeysSQL, []string{"Limit", "Index Scan using api_keys_pkey on api_keys"}},
	{"list keys of a user", listKeysOfUserSQL, []string{"Limit", "Index Scan using api_keys_owner on api_keys", "Sort", "CTE Scan on mine"}},
	{"revoke key", revokeKeySQL, []string{"Update on api_keys", "Index Scan using api_keys_pkey on api_keys"}},
	{"expire key", expireKeySQL, []string{"Update on api_keys", "Index Scan using api_keys_pkey on api_keys"}},
	{"prune keys", pruneKeysSQL, []string{"Delete on api_keys", "Limit", "Seq Scan on api_keys api_keys_1", "Index Scan using api_keys_pkey on api_keys"}},
	{"next revision", nextRevisionSQL, nil},
	{"next removal", nextRemovalSQL, nil},
	{"read revision", readRevisionSQL, nil},
	{"count overrides", countOverridesSQL, nil},
	{"put override", putOverrideSQL, nil},
	{"lock revision", lockRevisionSQL, nil},
	{"delete override", deleteOverrideSQL, []string{"Insert on override_removals", "Delete on overrides", "Index Scan using overrides_pkey on overrides", "CTE Scan on gone"}},
	{"removed overrides", removedOverridesSQL, []string{"Index Scan using override_removals_pkey on override_removals"}},
	{"forget removals", forgetRemovalsSQL, []string{"Delete on override_removals", "Aggregate", "Subquery Scan on oldest", "Limit", "Index Scan using override_removals_pkey on override_removals override_removals_1", "Index Scan using override_removals_pkey on override_removals"}},
	{"list overrides", listOverridesSQL, []string{"Limit", "Index Scan using overrides_pkey on overrides"}},
	{"list overrides of a policy", listOverridesOfPolicySQL, []string{"Limit", "Index Scan using overrides_pkey on overrides"}},
	{"changed overrides", changedOverridesSQL, []string{"Index Scan using overrides_revision on overrides"}},
	{"prune overrides", pruneOverridesSQL, []string{"Insert on override_removals", "Delete on overrides overrides_1", "Limit", "Index Scan using overrides_pkey on overrides", "Tid Scan on overrides overrides_1", "CTE Scan on gone"}},
	{"lose runs", loseRunsSQL, []string{"Update on job_runs", "Update on job_runs job_runs_1", "Index Scan using job_runs_running on job_runs job_runs_1", "Index Scan using job_runs_running on job_runs"}},
	{"claim run", claimRunSQL, nil},
	{"forget runs ahead", forgetAheadSQL, []string{"Delete on job_runs", "Index Scan using job_runs_pkey on job_runs"}},
	{"finish run", finishRunSQL, nil},
	{"runs", runsSQL, []string{"Limit", "Index Scan Backward using job_runs_scheduled on job_runs"}},
	{"runs of a job", runsOfJobSQL, []string{"Limit", "Index Scan Backward using job_runs_pkey on job_runs"}},
	{"prune runs", pruneRunsSQL, nil},
	{"schema version", schemaVersionSQL, nil},
	{"session", sessionSQL, nil},
	{"report", reportingSQL, nil},
	{"encoding", takesUTF8SQL, nil},
	{"last row of the journal", lastJournalRowSQL, []string{"Limit", "Index Scan Backward using journal_pkey on journal"}},
	{"rows of another journal", otherJournalSQL, []string{"Result", "Function Scan on theirs", "Limit", "Index Only Scan Backward using journal_pkey on journal", "Index Scan using journal_pkey on journal own"}},
	{"add usage", addUsageSQL, []string{"Insert on usage_counts c", "Function Scan on u"}},
	{"add requests", addRequestsSQL, []string{"Insert on usage_requests", "Function Scan on unnest"}},
	{"roll up usage", rollupUsageSQL, []string{"Aggregate", "Delete on usage_counts usage_counts_1", "Limit", "LockRows", "Index Scan using usage_counts_pkey on usage_counts", "Tid Scan on usage_counts usage_counts_1", "Insert on usage_counts c", `Subquery Scan on "*SELECT*"`, "GroupAggregate", "Sort", "CTE Scan on gone gone_1", "CTE Scan on gone"}},
	{"prune usage", pruneUsageSQL, []string{"Delete on usage_counts", "Limit", "LockRows", "Index Scan using usage_counts_pkey on usage_counts usage_counts_1", "Tid Scan on usage_counts"}},
	{"prune requests", pruneRequestsSQL, []string{"Delete on usage_requests", "Limit", "LockRows", "Index Scan using usage_requests_at on usage_requests usage_requests_1", "Tid Scan on usage_requests"}},
}

// reportQueries are those that run after reportingSQL. A percentile needs its rows in order.
var reportQueries = []query{
	{"top by denied", topUsageSQLs[usage.ByDenied], []string{"Limit", "Sort", "HashAggregate", "Index Scan using usage_counts_pkey on usage_counts"}},
	{"traffic", trafficSQL, []string{"Limit", "Sort", "HashAggregate", "Index Scan using usage_requests_at on usage_requests"}},
	{"slowest endpoints", slowestSQL, []string{"Limit", "Sort", "GroupAggregate", "Sort", "Index Scan using usage_requests_at on usage_requests"}},
	{"endpoint errors", failuresSQL, []string{"Limit", "Sort", "HashAggregate", "Index Scan using usage_requests_at on usage_requests"}},
}

// TestPlans prepares every query and checks its generic plan: on tables that were never analyzed,
// and when statistics say that they are small, which is when the planner prefers sequential scans.
func TestPlans(t *testing.T) {
	s := open(t, Config{})
	for _, analyzed := range []bool{false, true} {
		conn := connect(t, s)
		if analyzed {
			update(t, s, batch("a", "b", "c"), set("1"))
			exec(t, conn, "ANALYZE")
		}
		wantPlans(t, conn, slices.Concat(queries, alertQueries), fmt.Sprintf("analyzed %t", analyzed))
		exec(t, conn, "DEALLOCATE ALL; SET enable_sort = off")
		wantPlans(t, conn, reportQueries, fmt.Sprintf("without sorts, analyzed %t", analyzed))
	}
	for _, sql := range decisionSQL {
		if !slices.ContainsFunc(queries, func(q query) bool { return q.sql == sql }) {
			t.Errorf("not looked at: %s", sql)
		}
	}
}

// wantPlans prepares queries and checks their generic plans.
func wantPlans(t *testing.T, conn *pgx.Conn, all []query, when string) {
	t.Helper()
	for i, q := range all {
		name := fmt.Sprintf("q%d", i)
		d, err := conn.Prepare(t.Context(), name, q.sql)
		if err != nil {
			t.Errorf("prepare %s: %v", q.name, err)
			continue
		}
		if q.plan == nil {
			continue
		}
		args := ""
		if n := len(d.ParamOIDs); n > 0 {
			args = "(NULL" + strings.Repeat(", NULL", n-1) + ")"
		}
		rows, err := conn.Query(t.Context(), "EXPLAIN (COSTS OFF) EXECUTE "+name+args)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		nodes := nodesOf(lines)
		if i := slices.Index(nodes, "Unique"); i > 0 && nodes[i-1] == "Result" { // PostgreSQL 18 does without it
			nodes = slices.Delete(nodes, i-1, i)
		}
		if !slices.Equal(nodes, q.plan) {
			t.Errorf("%s, %s: the plan is\n%s\nwant %q", q.name, when, strings.Join(lines, "\n"), q.plan)
		}
	}
}

// nodesOf returns the nodes of a plan without their conditions.
func nodesOf(lines []string) (nodes []string) {
	for i, line := range lines {
		line = strings.TrimSpace(line)
		if node, ok := strings.CutPrefix(line, "->  "); ok || i == 0 {
			nodes = append(nodes, node)
		}
	}
	return nodes
}
