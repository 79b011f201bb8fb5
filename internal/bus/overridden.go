package bus

import (
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/policy"
)

// overridden finds for the policies what the table of overrides holds.
type overridden struct{ table *overrides.Table }

// Find implements [policy.Finder].
func (t overridden) Find(name, limit, subject string, now time.Time) (policy.Override, bool) {
	o, ok := t.table.Find(name, limit, subject, now.UnixMilli())
	if !ok {
		return policy.Override{}, false
	}
	found := policy.Override{
		Policy: name, Limit: limit, Subject: o.Subject, Reason: o.Reason,
		Changes: policy.Changed{Limit: o.Limit, Burst: o.Burst, Unlimited: o.Unlimited},
	}
	if o.ExpiresAt != 0 {
		found.ExpiresAt = time.UnixMilli(o.ExpiresAt)
	}
	if o.Window != "" {
		// It was checked when it was set; one that cannot be read stays as it is in the file.
		found.Changes.Window, _ = engine.ParseWindow(o.Window)
	}
	return found, true
}
