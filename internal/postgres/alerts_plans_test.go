package postgres

import (
	"slices"
	"testing"
)

// manyAlertsSQL fills the tables of alerts, mostly with rows that are over.
const manyAlertsSQL = `
INSERT INTO alert_events SELECT 'e' || n, n FROM generate_series(1, 20000) n;
INSERT INTO alert_groups SELECT 'r' || n % 3, 'g' || n, 's', n FROM generate_series(1, 20000) n;
INSERT INTO alerts SELECT 'a' || n, 'r' || n % 3, 'g' || n % 7000, 's' || n % 7000, 'limits.exceeded', 'u' || n % 500, 'p', n, n,
	CASE WHEN n % 20 = 0 THEN 0 ELSE n END, CASE n % 60 WHEN 0 THEN 'pending' WHEN 1 THEN 'held' ELSE 'sent' END, '', n, n, 0, '', '{}'
FROM generate_series(1, 20000) n;
INSERT INTO alert_deliveries SELECT 'd' || n, 'c' || n % 3, '{}',
	CASE n % 40 WHEN 0 THEN 'waiting' WHEN 1 THEN 'dead' ELSE 'sent' END, 1, n, n, CASE WHEN n % 40 = 0 THEN 0 ELSE n END, ''
FROM generate_series(1, 20000) n;
INSERT INTO alert_silences SELECT 's' || n, n, n, '{}' FROM generate_series(1, 1000) n;
INSERT INTO alert_poison SELECT n, '', '', '', n FROM generate_series(1, 1000) n;
ANALYZE`

// alertQueries are the queries of alerts, each with what its plan must contain: there may be many
// rows of every kind.
var alertQueries = []query{
	{"take events", takeEventsSQL, []string{"Insert on alert_events", "Function Scan on unnest u"}},
	{"lock groups", lockGroupsSQL, []string{"Insert on alert_groups g", `Subquery Scan on "*SELECT*"`, "Function Scan on u"}},
	{"read groups", readGroupsSQL, []string{"Nested Loop", "Function Scan on u", "Limit", "Index Scan using alert_groups_pkey on alert_groups"}},
	{"lock alerts", lockAlertsSQL, []string{"Nested Loop", "Sort", "Nested Loop", "Function Scan on u", "Limit", "Index Scan using alerts_open on alerts alerts_1", "Function Scan on unnest i", "Subquery Scan on a", "Limit", "LockRows", "Index Scan using alerts_pkey on alerts"}},
	{"exceeded", exceededSQL, []string{"Nested Loop", "Function Scan on unnest u", "Limit", "Index Scan using alerts_subject on alerts"}},
	{"alert clock", alertClockSQL, []string{"Result"}},
	{"write groups", writeGroupsSQL, []string{"Insert on alert_groups", "Function Scan on u"}},
	{"insert alerts", insertAlertsSQL, []string{"Insert on alerts", "Function Scan on u"}},
	{"update alerts", updateAlertsSQL, []string{"Update on alerts a", "Nested Loop", "Subquery Scan on u", "Nested Loop", "Function Scan on u_1", "Limit", "Index Scan using alerts_pkey on alerts", "Tid Scan on alerts a"}},
	{"alert", alertSQL, []string{"Limit", "Index Scan using alerts_pkey on alerts a"}},
	{"list alerts", listAlertsSQL, []string{"Limit", "Index Scan Backward using alerts_raised on alerts a"}},
	{"list open alerts", listOpenAlertsSQL, []string{"Limit", "Index Scan Backward using alerts_open_raised on alerts a"}},
	{"list alerts of a user", listAlertsOfUserSQL, []string{"Limit", "Index Scan using alerts_user on alerts a"}},
	{"list open alerts of a user", listOpenAlertsOfUserSQL, []string{"Limit", "Index Scan using alerts_user on alerts a"}},
	{"prune alerts", pruneAlertsSQL, []string{"Delete on alerts", "Limit", "LockRows", "Index Scan using alerts_resolved on alerts alerts_1", "Tid Scan on alerts"}},
	{"prune deliveries", pruneDeliveriesSQL, []string{"Delete on alert_deliveries", "Limit", "LockRows", "Index Scan using alert_deliveries_ended on alert_deliveries alert_deliveries_1", "Tid Scan on alert_deliveries"}},
	{"prune silences", pruneSilencesSQL, []string{"Delete on alert_silences", "Limit", "LockRows", "Index Scan using alert_silences_expires on alert_silences alert_silences_1", "Tid Scan on alert_silences"}},
	{"prune poison", prunePoisonSQL, []string{"Delete on alert_poison", "Limit", "LockRows", "Index Scan using alert_poison_kept on alert_poison alert_poison_1", "Tid Scan on alert_poison"}},
	{"prune groups", pruneGroupsSQL, []string{"Delete on alert_groups", "Limit", "LockRows", "Index Scan using alert_groups_changed on alert_groups g", "Limit", "Index Scan using alerts_open on alerts", "Tid Scan on alert_groups"}},
	{"prune taken", pruneTakenSQL, []string{"Delete on alert_events", "Limit", "LockRows", "Index Scan using alert_events_taken on alert_events alert_events_1", "Tid Scan on alert_events"}},
	{"pending alerts", pendingAlertsSQL, []string{"Update on alerts a", "Limit", "LockRows", "Index Scan using alerts_pending on alerts", "Nested Loop", "CTE Scan on due", "Tid Scan on alerts a"}},
	{"lock pending", lockPendingSQL, []string{"Nested Loop", "Function Scan on unnest u", "Subquery Scan on a", "Limit", "LockRows", "Index Scan using alerts_pkey on alerts"}},
	{"tell alerts", saveNoticesSQL, []string{"Update on alerts a", "Nested Loop", "Subquery Scan on u", "Nested Loop", "Function Scan on u_1", "Limit", "Index Scan using alerts_pkey on alerts", "Tid Scan on alerts a"}},
	{"resolvable alerts", resolvableAlertsSQL, []string{"Limit", "LockRows", "Index Scan using alerts_resolve on alerts a"}},
	{"resolvable alerts of a clock that was ahead", resolvableAheadSQL, []string{"Limit", "LockRows", "Index Scan using alerts_resolve on alerts a"}},
	{"resolve alerts", resolveAlertsSQL, []string{"Update on alerts a", "Nested Loop", "Subquery Scan on u", "Nested Loop", "Function Scan on unnest u_1", "Limit", "Index Scan using alerts_pkey on alerts", "Tid Scan on alerts a"}},
	{"held users", heldUsersSQL, []string{"Limit", "Unique", "Index Scan using alerts_held on alerts"}},
	{"held alerts", heldAlertsSQL, []string{"Sort", "Sort", "Subquery Scan on h", "Limit", "Index Scan using alerts_held on alerts alerts_1", "Nested Loop", "Function Scan on unnest i", "Subquery Scan on a", "Limit", "LockRows", "Index Scan using alerts_pkey on alerts"}},
	{"digest alerts", digestAlertsSQL, []string{"Update on alerts a", "Nested Loop", "Subquery Scan on u", "Nested Loop", "Function Scan on unnest u_1", "Limit", "Index Scan using alerts_pkey on alerts", "Tid Scan on alerts a"}},
	{"hold alerts", holdAlertsSQL, []string{"Update on alerts a", "Nested Loop", "Subquery Scan on u", "Nested Loop", "Function Scan on u_1", "Limit", "Index Scan using alerts_pkey on alerts", "Tid Scan on alerts a"}},
	{"add deliveries", addDeliveriesSQL, []string{"Insert on alert_deliveries", "Nested Loop", "Result", "Function Scan on u"}},
	{"due deliveries", dueDeliveriesSQL, []string{"Update on alert_deliveries d", "Limit", "LockRows", "Index Scan using alert_deliveries_due on alert_deliveries d_1", "Limit", "Index Scan using alert_deliveries_pkey on alert_deliveries", "Nested Loop", "CTE Scan on due", "Tid Scan on alert_deliveries d"}},
	{"other deliveries", otherDeliveriesSQL, []string{"Limit", "Recursive Union", "Limit", "Index Only Scan using alert_deliveries_due on alert_deliveries", "WorkTable Scan on waiting w_1", "Nested Loop", "CTE Scan on waiting w", "Limit", "Index Scan using alert_deliveries_due on alert_deliveries d", "Limit", "Index Scan using alert_deliveries_pkey on alert_deliveries alert_deliveries_1"}},
	{"recall deliveries", recallDeliveriesSQL, []string{"Update on alert_deliveries d", "Recursive Union", "Limit", "Index Only Scan using alert_deliveries_due on alert_deliveries", "WorkTable Scan on waiting w", "Limit", "Nested Loop", "CTE Scan on waiting w_1", "Subquery Scan on d_1", "Limit", "LockRows", "Index Scan using alert_deliveries_due on alert_deliveries alert_deliveries_1", "Nested Loop", "CTE Scan on ahead", "Tid Scan on alert_deliveries d"}},
	{"advance deliveries", advanceDeliveriesSQL, []string{"Update on alert_deliveries d", "Limit", "LockRows", "Index Scan using alert_deliveries_due on alert_deliveries", "Nested Loop", "CTE Scan on ahead", "Tid Scan on alert_deliveries d"}},
	{"lock deliveries", lockDeliveriesSQL, []string{"Nested Loop", "Function Scan on unnest u", "Subquery Scan on d", "Limit", "LockRows", "Index Scan using alert_deliveries_pkey on alert_deliveries"}},
	{"deliver", saveResultsSQL, []string{"Update on alert_deliveries d", "Nested Loop", "Subquery Scan on u", "Nested Loop", "Function Scan on u_1", "Limit", "Index Scan using alert_deliveries_pkey on alert_deliveries", "Tid Scan on alert_deliveries d"}},
	{"old deliveries", oldDeliveriesSQL, []string{"Limit", "LockRows", "Index Scan using alert_deliveries_age on alert_deliveries d", "Limit", "Index Scan using alert_deliveries_pkey on alert_deliveries"}},
	{"waiting deliveries", waitingDeliveriesSQL, []string{"GroupAggregate", "Index Only Scan using alert_deliveries_due on alert_deliveries"}},
	{"deliveries of", deliveriesOfSQL, []string{"Limit", "Index Scan using alert_deliveries_pkey on alert_deliveries d"}},
	{"dead deliveries", deadDeliveriesSQL, []string{"Limit", "Index Scan using alert_deliveries_dead on alert_deliveries d"}},
	{"dead deliveries of a channel", deadDeliveriesOfChannelSQL, []string{"Limit", "Index Scan using alert_deliveries_dead_channel on alert_deliveries d"}},
	{"replay deliveries", replayDeliveriesSQL, []string{"Update on alert_deliveries", "Limit", "LockRows", "Index Scan using alert_deliveries_dead on alert_deliveries d", "Tid Scan on alert_deliveries"}},
	{"replay deliveries of a channel", replayDeliveriesOfChannelSQL, []string{"Update on alert_deliveries", "Limit", "LockRows", "Index Scan using alert_deliveries_dead_channel on alert_deliveries d", "Tid Scan on alert_deliveries"}},
	{"add silence", addSilenceSQL, nil},
	{"end silence", endSilenceSQL, []string{"Update on alert_silences a", "Nested Loop", "Subquery Scan on p", "Limit", "LockRows", "Index Scan using alert_silences_pkey on alert_silences", "Tid Scan on alert_silences a"}},
	{"silences", silencesSQL, []string{"Limit", "Index Scan using alert_silences_expires on alert_silences", "Sort", "CTE Scan on now"}},
	{"all silences", allSilencesSQL, []string{"Limit", "Index Scan Backward using alert_silences_created on alert_silences"}},
	{"store poison message", keepPoisonSQL, nil},
	{"trim poison", trimPoisonSQL, nil},
	{"poison", poisonSQL, nil},
	{"disable channel", disableChannelSQL, nil},
	{"enable channel", enableChannelSQL, []string{"Delete on alert_channels", "Index Scan using alert_channels_pkey on alert_channels"}},
	{"disabled channels", disabledChannelsSQL, []string{"Index Scan using alert_channels_pkey on alert_channels"}},
}

// TestAlertPlans checks the plans on large tables. [TestPlans] checks them on new and small ones.
func TestAlertPlans(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	conn := connect(t, s)
	exec(t, conn, "SET statement_timeout = 0; "+manyAlertsSQL)
	wantPlans(t, conn, alertQueries, "large tables")
}

// TestAlertPlansBeforeAnalyze checks the plans when tables have grown before the server has
// analyzed them.
func TestAlertPlansBeforeAnalyze(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	conn := connect(t, s)
	exec(t, conn, `SET statement_timeout = 0; ALTER TABLE alerts SET (autovacuum_enabled = off);
INSERT INTO alerts SELECT 'a' || n, 'r', 'g' || n, 's' || n, 'limits.exceeded', 'u' || n % 500, 'p', n, n, CASE WHEN n % 10 = 0 THEN 0 ELSE n END, 'sent',
	'', n, n, 0, '', '{}'
FROM generate_series(1, 60000) n`)
	wantPlans(t, conn, alertQueries, "never analyzed")
}

// TestAlertPlansOfABurst checks the plans of deliveries when many wait, such as those of an outage that ended for everybody at
// once, and the server has last analyzed the table when nearly none did.
func TestAlertPlansOfABurst(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	conn := connect(t, s)
	exec(t, conn, `SET statement_timeout = 0; ALTER TABLE alert_deliveries SET (autovacuum_enabled = off);
INSERT INTO alert_deliveries SELECT 'a' || n || '.raised/c', 'c', '{}', 'sent', 1, n, n, n, '' FROM generate_series(1, 20000) n;
ANALYZE alert_deliveries;
INSERT INTO alert_deliveries SELECT 'a' || n || '.resolved/c', 'c', '{}', 'waiting', 0, n, n, 0, '' FROM generate_series(1, 2000) n`)
	var about []query
	for _, q := range alertQueries {
		if slices.Contains([]string{"due deliveries", "other deliveries", "advance deliveries", "old deliveries"}, q.name) {
			about = append(about, q)
		}
	}
	wantPlans(t, conn, about, "a burst since the last ANALYZE")
}
