package app

import (
	"strings"
	"testing"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestAnswersSayThatTheDiskIsFull: "the store is unavailable" would hide it. A trigger simulates the full disk.
func TestAnswersSayThatTheDiskIsFull(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.DatabaseURL = testenv.Postgres(t)
	nc := running(t, Run, o).connect(t)
	client := limits.NewClient(nc, limits.Timeout(patience))
	db := database(t, o.DatabaseURL)
	_, err := db.Exec(t.Context(), `CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql
		AS $$ BEGIN RAISE 'could not extend file "base/1/2": No space left on device' USING ERRCODE = 'disk_full'; END $$;
		CREATE TRIGGER full_disk BEFORE INSERT ON journal FOR EACH ROW EXECUTE FUNCTION full_disk()`)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // of the second the circuit is open
		_, err := client.Record(t.Context(), limits.Per("k", 1, "1m"))
		if err == nil || !strings.Contains(err.Error(), "the store's disk is full") || strings.Contains(err.Error(), "base/1/2") {
			t.Errorf("a record: %v; want that the disk is full", err)
		}
	}
}
