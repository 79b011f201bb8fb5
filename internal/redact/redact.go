// Package redact takes out of texts that people or logs get to see what does not belong there: secrets, and what would not
// print on a line.
package redact

import (
	"errors"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// secret is the user, password or token of a URL, and of an address without a scheme.
var secret = regexp.MustCompile(`(^|[\s,"])([A-Za-z][\w+.-]*://)?[^\s,"]*@`)

// URLs puts *** in the place of user, password and token of all URLs in a text, such as a line of a log.
func URLs(text string) string {
	return secret.ReplaceAllString(text, "$1$2***@")
}

// Servers is URLs for a list of URLs with commas between. Where the password of one that cannot be read begins and ends
// nobody can tell, so nothing is shown then.
func Servers(list string) string {
	if CheckServers(list) != nil {
		return "***"
	}
	return URLs(list)
}

// CheckServers holds that a list of URLs with commas between can be read, as nats.go does, and that there can be such servers. Its
// errors are safe to show: what stands where a port belongs may be a password.
func CheckServers(list string) error {
	for one := range strings.SplitSeq(list, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue // nats.go leaves it out
		}
		if !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		u, err := url.Parse(one)
		if err != nil {
			return errors.New(Error(err))
		}
		if !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) { // nats.go would speak to it as to nats://
			return errors.New("a server is none of NATS; want nats://host:port, such as nats://127.0.0.1:4222, or one that begins with tls://, ws:// or wss://")
		}
		if u.Hostname() == "" { // nats.go would take one on this machine
			return errors.New("a server has no host; want nats://host:port, such as nats://127.0.0.1:4222")
		}
		if _, port, err := net.SplitHostPort(u.Host); err == nil {
			if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0) {
				return errors.New("the port of a server is no number from 1 to 65535; want nats://host:port, such as nats://127.0.0.1:4222")
			}
		} else if strings.Count(u.Host, ":") > 1 && !strings.HasSuffix(u.Host, "]") {
			return errors.New("a server has too many colons; want nats://host:port, with an IPv6 address as nats://[::1]:4222")
		}
	}
	return nil
}

// Error is the text of an error, with the URLs as [URLs] shows them. Why a URL cannot be read is not told: net/url quotes the
// part at which it stumbled, which may be one of the password.
func Error(err error) string {
	if parse, ok := errors.AsType[*url.Error](err); ok && parse.Op == "parse" {
		return "the URL is malformed; want nats://user:password@host:port, with / ? # @ : % and , of a user or password written as" +
			" %2F %3F %23 %40 %3A %25 and %2C"
	}
	return URLs(err.Error())
}

// Line bounds a text to so many bytes and leaves out what would not print on a line.
func Line(text string, most int) string {
	text = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most-len("…")], "") + "…"
	}
	return text
}
