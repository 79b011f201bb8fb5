package sqlite

import (
	"strings"
	"testing"
)

// TestPlans: no statement of decisions or of alerts scans or sorts a whole table, except those that return all of it in the
// order of an index or of the table, or that sort little.
func TestPlans(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	mayScan := map[string]string{
		readOutboxSQL:        "SCAN outbox",
		allSilencesSQL:       "SCAN alert_silences USING INDEX alert_silences_created",
		poisonSQL:            "SCAN alert_poison USING INDEX alert_poison_kept",
		disabledChannelsSQL:  "SCAN alert_channels",
		trimPoisonSQL:        "SCAN alert_poison",
		waitingDeliveriesSQL: "SCAN alert_deliveries USING COVERING INDEX alert_deliveries_due",
	}
	maySort := map[string]string{
		silencesSQL: "USE TEMP B-TREE FOR ORDER BY", poisonSQL: "USE TEMP B-TREE FOR LAST 2 TERMS OF ORDER BY",
	}
	for _, sql := range []string{
		readCounterSQL, updateStateSQL, updateCounterSQL, readReceiptSQL, deleteEventSQL, readOutboxSQL,
		countersOfKeySQL, listCountersSQL, countCountersSQL, idsOfSpanSQL, deleteSpanSQL, deleteJournalSQL,
		expiredCountersSQL, deleteCounterSQL, deleteExpiredReceiptsSQL,
		takeEventSQL, readGroupSQL, readOpenSQL, readExceededSQL, writeGroupSQL, insertAlertSQL, updateAlertSQL,
		alertSQL, listAlertsSQL, listOpenAlertsSQL, listAlertsOfUserSQL, listOpenAlertsOfUserSQL,
		pruneAlertsSQL, pruneDeliveriesSQL, pruneSilencesSQL, prunePoisonSQL, pruneGroupsSQL, pruneTakenSQL,
		pendingAlertsSQL, pendingAheadSQL, claimAlertSQL, saveNoticeSQL, resolvableAlertsSQL, resolvableAheadSQL, resolveAlertSQL, heldUsersSQL, allHeldUsersSQL,
		heldAlertsSQL, digestAlertSQL, holdAlertSQL, addDeliverySQL, dueDeliveriesSQL, claimDeliverySQL, otherDeliveriesSQL, recallDeliveriesSQL, advanceDeliveriesSQL, saveResultSQL, oldDeliveriesSQL,
		deliveriesOfSQL, deadDeliveriesSQL, deadDeliveriesOfChannelSQL, replayDeliveriesSQL, replayDeliveriesOfChannelSQL,
		addSilenceSQL, endSilenceSQL, silencesSQL, allSilencesSQL, keepPoisonSQL, trimPoisonSQL, poisonSQL, disableChannelSQL, enableChannelSQL,
		disabledChannelsSQL, waitingDeliveriesSQL,
	} {
		rows, err := s.conn.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+sql, make([]any, 11)...)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			if maySort[sql] == detail || mayScan[sql] != "" && strings.HasPrefix(detail, mayScan[sql]) {
				continue
			}
			if strings.Contains(detail, "TEMP B-TREE") || strings.HasPrefix(detail, "SCAN") && detail != "SCAN w" && detail != "SCAN CONSTANT ROW" &&
				!strings.HasPrefix(detail, "SCAN json_each") {
				t.Errorf("%s: %s", sql, detail)
			}
		}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
