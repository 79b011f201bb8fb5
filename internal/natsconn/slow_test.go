package natsconn

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestAServerThatReadsSlowlyIsNotGivenUp: a timeout is for what does not go on.
func TestAServerThatReadsSlowlyIsNotGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		c := New(here, new(Handlers), time.Second)
		const pieces = 5
		go func() {
			for range pieces {
				time.Sleep(time.Second * 9 / 10)
				if _, err := io.ReadFull(there, make([]byte, sendSize)); err != nil {
					t.Error(err)
				}
			}
		}()
		if n, err := c.Write(make([]byte, pieces*sendSize)); n != pieces*sendSize || err != nil {
			t.Errorf("%d bytes were written: %v", n, err)
		}
	})
}
