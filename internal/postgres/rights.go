package postgres

import (
	"context"
	"fmt"
)

// Rights are the privileges on tables that a part of the program needs, as deploy/roles.sql grants
// them to a role.
type Rights struct {
	role   string
	tables map[string][]string
}

var readAndWrite = []string{"SELECT", "INSERT", "UPDATE", "DELETE"}

// RightsToDecide are those that decisions need.
func RightsToDecide() Rights {
	return Rights{"limits_worker", map[string][]string{
		"counters": readAndWrite, "receipts": readAndWrite, "outbox": readAndWrite, "journal": {"SELECT", "INSERT", "DELETE"},
		// Without these a worker would decide without what was overridden since its start.
		"overrides": {"SELECT"}, "override_revision": {"SELECT"}, "override_removals": {"SELECT"},
		// Without these it would verify no API key, or revoke none.
		"api_keys": {"SELECT"}, "key_revision": {"SELECT", "UPDATE"},
	}}
}

// RightsToAlert are those that alerts and jobs need.
func RightsToAlert() Rights {
	return Rights{"limits_alerter", map[string][]string{
		"alert_events": readAndWrite, "alert_groups": readAndWrite, "alerts": readAndWrite, "alert_deliveries": readAndWrite,
		"alert_channels": readAndWrite, "alert_silences": readAndWrite, "alert_poison": readAndWrite, "job_runs": readAndWrite,
	}}
}

// has_table_privilege is NULL for a missing table, which is not an error of privileges.
const missingRightsSQL = `
SELECT current_user::text, string_agg(p || ' on ' || t, ', ' ORDER BY t, p) FROM unnest($1::text[], $2::text[]) wanted (t, p)
WHERE NOT has_table_privilege(to_regclass(t), p)`

// CheckRights returns an error that names the privileges which the role of the connections lacks.
// Without them the server can be reached, but refuses to work.
func (s *Store) CheckRights(ctx context.Context, needs ...Rights) error {
	for _, n := range needs {
		var tables, rights []string
		for table, needed := range n.tables {
			for _, right := range needed {
				tables, rights = append(tables, table), append(rights, right)
			}
		}
		var role string
		var missing *string
		if err := s.relay.QueryRow(ctx, missingRightsSQL, tables, rights).Scan(&role, &missing); err != nil {
			return fmt.Errorf("check privileges: %w", err)
		}
		if missing != nil {
			return fmt.Errorf("check privileges: role %q lacks %s; grant it what deploy/roles.sql grants to %s", role, *missing, n.role)
		}
	}
	return nil
}
