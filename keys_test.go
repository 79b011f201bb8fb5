package limits_test

import (
	"testing"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/app/apptest"
)

// TestVerifyChargeCanBeSettled uses the real service: the decision of a verify has the id, like
// that of a consume.
func TestVerifyChargeCanBeSettled(t *testing.T) {
	t.Parallel()
	nc := apptest.Serve(t, t.TempDir(), `policies: [{name: tokens, limits: [{name: hour, key: "tokens:{user}", limit: 1000, window: 1h}]}]`)
	c := patient(nc)
	made, err := c.CreateKey(t.Context(), limits.CreateKeyRequest{User: "7"})
	if err != nil {
		t.Fatal(err)
	}

	verified, err := c.VerifyKey(t.Context(), limits.VerifyRequest{APIKey: made.APIKey, Policy: "tokens", Cost: 400, ID: "7:job-17"})
	if err != nil || !verified.Allowed() || verified.Decision.Remaining != 600 || verified.Decision.ID != "7:job-17" {
		t.Fatalf("verify: %+v, %v; want 600 left under the id that was sent", verified, err)
	}
	settled, err := c.Settle(t.Context(), verified.Decision.ID, 150)
	if err != nil || !settled.Allowed || settled.Remaining != 850 {
		t.Errorf("settle: %+v, %v; want 850 left", settled, err)
	}
	if unknown, err := c.VerifyKey(t.Context(), limits.VerifyRequest{APIKey: "a guess", Policy: "tokens", ID: "7:job-18"}); err != nil || unknown.Decision != nil {
		t.Errorf("a text that is not a key: %+v, %v; want no decision", unknown, err)
	}
}
