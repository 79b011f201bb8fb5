package natsconn

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// TestLeftMessagesAreNotReparsed: a client that sends requests that cannot be read must not cause
// much more work than others. After one of those, handlers soon get batches as large as before.
func TestLeftMessagesAreNotReparsed(t *testing.T) {
	t.Parallel()
	const count = 10 * MaxBatch
	for _, every := range []int{1, 2, 3, 7, 16, MaxBatch, 2 * MaxBatch, count} {
		var said strings.Builder
		for i := range count {
			said.WriteString(message("taken", "r ", fmt.Sprint(i)))
		}
		given, calls := 0, 0
		c := openConn(t, &fakeConn{in: strings.NewReader(said.String())}, map[string]Handler{"taken": func(_ *Conn, all []Message) int {
			given, calls = given+len(all), calls+1
			for i, m := range all {
				if n, _ := strconv.Atoi(string(m.Data)); n%every == 0 {
					return i
				}
			}
			return len(all)
		}})
		read(t, c, readSize)
		if given > 2*count {
			t.Errorf("where one of %d is left handlers were given %d messages, which are %d", every, given, count)
		}
		if every == count && calls > count/MaxBatch+6 {
			t.Errorf("behind one that was left handlers were called %d times", calls)
		}
	}
}
