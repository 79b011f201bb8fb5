package bus

import (
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestReadHistory(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	read := func(since time.Time, max int) (ids []string, h History, err error) {
		h, err = ReadHistory(t.Context(), HistoryConfig{Conn: nc, Since: since, Max: max},
			func(e alerts.Event) bool { ids = append(ids, e.ID); return true })
		return ids, h, err
	}
	if _, _, err := read(time.UnixMilli(1), 5); err == nil || !strings.Contains(err.Error(), "stream LIMITS not found on this NATS server") {
		t.Error(err)
	}
	js := stream(t, nc)
	if ids, h, err := read(time.UnixMilli(1), 5); err != nil || len(ids) != 0 || h != (History{}) {
		t.Error(ids, h, err)
	}
	publishEvents(t, js, 0, 600)
	if _, err := js.Publish(t.Context(), limits.EventWarning, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	ids, h, err := read(time.UnixMilli(1), 10_000)
	if err != nil || len(ids) != 600 || ids[0] != "id-0" || ids[599] != "id-599" || h != (History{Unreadable: 1}) {
		t.Error(len(ids), h, err)
	}
	if ids, h, err = read(time.UnixMilli(1), 7); err != nil || len(ids) != 7 || h.Left != 594 {
		t.Error(ids, h, err)
	}
	s, err := js.Stream(t.Context(), limits.EventStream)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetMsg(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	if ids, _, err = read(m.Time, 10); err != nil || len(ids) == 0 || ids[len(ids)-1] != "id-599" {
		t.Error(ids, err)
	}
}

// TestHistoryEndsWhereItBegan: what is stored while it is read is not part of it, or it might never end.
func TestHistoryEndsWhereItBegan(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	const before = 300 // more than one pull brings
	publishEvents(t, js, 0, before)
	read := 0
	h, err := ReadHistory(t.Context(), HistoryConfig{Conn: nc, Since: time.UnixMilli(1), Max: 1000}, func(alerts.Event) bool {
		if read++; read == 1 {
			publishEvents(t, js, before, before+5)
		}
		return true
	})
	if err != nil || read != before || h != (History{}) {
		t.Errorf("read %d of %d events: %+v, %v", read, before, h, err)
	}
}
