package alerts_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/seed503877ad/limits"
)

// TestTheWordsOfAnAlertAreThoseOfItsNumbers, also where more events came before anybody was told.
func TestTheWordsOfAnAlertAreThoseOfItsNumbers(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	s := r.run()
	r.take(s, r.exceeded("7", "api", 1), r.exceeded("7", "api", 4999))
	r.seen.wait(t, "sent", 1)
	all := r.outbox("nats")
	if len(all) != 1 {
		t.Fatalf("%d messages; want 1", len(all))
	}
	var data limits.AlertRaised
	if err := json.Unmarshal(all[0].Message.Data, &data); err != nil {
		t.Fatal(err)
	}
	if data.Denied != 5000 || !strings.Contains(all[0].Message.Title, "5000 times") {
		t.Errorf("denied %d, %q; want 5000 of both", data.Denied, all[0].Message.Title)
	}
}
