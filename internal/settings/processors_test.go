package settings

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestSpareProcessorsUnlessGOMAXPROCSIsSet(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	for _, test := range []struct {
		told             string
		have, want, busy int
	}{{"", 8, 4, 8}, {"", 3, 1, 3}, {"", 2, 1, 2}, {"", 1, 1, 1}, {"8", 8, 8, 8}} {
		runtime.GOMAXPROCS(test.have)
		t.Setenv("GOMAXPROCS", test.told)
		synctest.Test(t, func(t *testing.T) {
			busy := SpareProcessors()
			uses := func(when string, want int) {
				t.Helper()
				synctest.Wait()
				if got := runtime.GOMAXPROCS(0); got != want {
					t.Errorf("of %d, with GOMAXPROCS %q, it uses %d %s, want %d", test.have, test.told, got, when, want)
				}
			}
			uses("at first", test.want)
			busy()
			uses("when busy", test.busy)
			time.Sleep(busyFor * 3 / 4)
			busy()
			time.Sleep(busyFor * 3 / 4)
			uses("when busy again", test.busy)
			time.Sleep(busyFor / 2)
			uses("a second later", test.want)
			busy()
			uses("when busy once more", test.busy)
			time.Sleep(busyFor * 2)
			uses("in the end", test.want)
		})
	}
}
