package zone

import (
	"strings"
	"testing"
	"time"
)

func TestLoad(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "GMT-0", "EST5EDT"} {
		if l, ok := Load(name); !ok || l.String() != name {
			t.Errorf("%s: %v", name, l)
		}
	}
	if l, _ := Load("UTC"); l != time.UTC {
		t.Errorf("UTC is %p", l)
	}
	for _, name := range []string{"", "Local", "localtime", "posixrules", "Factory", "right/Europe/Berlin", "posix/Europe/Berlin", "right/UTC",
		"Europe/Bern", "/etc/localtime", "../UTC", "Europe/../UTC", "Europe//Berlin", "Europe/./Berlin", "./UTC", "Europe/Berlin/", `Europe\Berlin`, "Europe/Berlin\x00", strings.Repeat("a", 65)} {
		if l, ok := Load(name); ok {
			t.Errorf("%q is %v", name, l)
		}
	}
}
