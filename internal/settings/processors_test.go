package settings

import (
	"runtime"
	"testing"
)

func TestSpareProcessorsUnlessTold(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	for _, test := range []struct {
		told       string
		have, want int
	}{{"", 8, 4}, {"", 3, 1}, {"", 2, 1}, {"", 1, 1}, {"8", 8, 8}} {
		runtime.GOMAXPROCS(test.have)
		t.Setenv("GOMAXPROCS", test.told)
		SpareProcessors()
		if got := runtime.GOMAXPROCS(0); got != test.want {
			t.Errorf("of %d, with GOMAXPROCS %q, it uses %d, want %d", test.have, test.told, got, test.want)
		}
	}
}
