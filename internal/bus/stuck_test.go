package bus

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnEmbeddedServerThatTakesNoEventsIsToBeRestarted, which is said once, and of no other server.
func TestAnEmbeddedServerThatTakesNoEventsIsToBeRestarted(t *testing.T) {
	for _, embedded := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			r := &Relay{cfg: RelayConfig{Logger: slog.New(slog.NewTextHandler(&log, nil)), Embedded: embedded}, refused: true, stuck: time.Now()}
			for range 3 * 60 {
				r.failed(errors.New("no space left on device"))
				time.Sleep(time.Second)
			}
			want := 0
			if embedded {
				want = 1
			}
			if n := strings.Count(log.String(), "restart the limiter"); n != want {
				t.Errorf("embedded %t: said %d times, want %d\n%s", embedded, n, want, &log)
			}
		})
	}
}
