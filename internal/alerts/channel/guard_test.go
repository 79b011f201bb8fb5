package channel

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/seed503877ad/limits/internal/alerts"
)

func TestGuardKnowsWhatIsPublic(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]bool{
		"1.1.1.1": true, "93.184.215.14": true, "172.15.255.255": true, "172.32.0.0": true, "100.63.255.255": true,
		"100.128.0.0": true, "223.255.255.255": true, "2606:4700::1111": true, "2a00:1450::1": true, "::ffff:1.1.1.1": true,

		"0.0.0.0": false, "0.1.2.3": false, "10.0.0.1": false, "10.255.255.255": false, "127.0.0.1": false, "127.8.9.1": false,
		"100.64.0.0": false, "100.127.255.255": false, "169.254.169.254": false, "172.16.0.0": false, "172.31.255.255": false,
		"192.168.1.1": false, "192.0.0.170": false, "192.0.2.1": false, "198.18.0.1": false, "198.19.255.255": false,
		"198.51.100.7": false, "203.0.113.9": false, "192.88.99.1": false, "224.0.0.1": false, "239.255.255.250": false,
		"240.0.0.1": false, "255.255.255.255": false,

		"::": false, "::1": false, "fe80::1": false, "fe80::1%eth0": false, "fec0::1": false, "fc00::1": false, "fd12::1": false,
		"ff02::1": false, "::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::127.0.0.1": false, "64:ff9b::10.0.0.1": false,
		"64:ff9b::1.1.1.1": false, "64:ff9b:1::1": false, "2002:7f00:1::": false, "2001::1": false, "2001:db8::1": false,
		"100::1": false, "3fff::1": false, "5f00::1": false,
	} {
		if err := (guard{}).check(netip.MustParseAddr(addr)); (err == nil) != want {
			t.Errorf("%s: error %v, want public %t", addr, err, want)
		}
	}
}

func TestGuardAllowsRanges(t *testing.T) {
	t.Parallel()
	g := guard{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("fe80::/10")}
	for addr, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "fd12::1": true, "fe80::1%eth0": true, "10.2.0.1": false, "127.0.0.1": false, "fc00::1": false,
	} {
		if err := g.check(netip.MustParseAddr(addr)); (err == nil) != want {
			t.Errorf("%s: error %v, want allowed %t", addr, err, want)
		}
	}
	err := guard{}.control("tcp4", "10.0.0.7:443", nil)
	if err == nil || !strings.Contains(err.Error(), "10.0.0.7/32") || !strings.Contains(err.Error(), "--alerts-allow") {
		t.Errorf("the error %v does not name the way out", err)
	}
	if guard(g).control("udp4", "1.1.1.1:53", nil) == nil || guard(g).control("tcp4", "nonsense", nil) == nil {
		t.Error("what is no TCP address was allowed")
	}
}

// TestCheckTargetDoesNoLookup: CheckTarget checks addresses and localhost; other names are checked
// when the connection is made.
func TestCheckTargetDoesNoLookup(t *testing.T) {
	t.Parallel()
	loopback6 := netip.MustParsePrefix("::1/128")
	for _, c := range []struct {
		url     string
		allow   []netip.Prefix
		refused bool
	}{
		{"http://10.0.0.1/hook", nil, true},
		{"http://10.0.0.1/hook", prefixes("10.0.0.0/8"), false},
		{"https://[fd00::1]:8443/hook", nil, true},
		{"https://1.1.1.1/hook", nil, false},
		{"https://hooks.example/hook", nil, false},
		{"http://LocalHost:9000/hook", nil, true},
		{"http://hooks.localhost./hook", nil, true},
		{"http://localhost/hook", prefixes("127.0.0.1/32"), false},
		{"http://localhost/hook", []netip.Prefix{loopback6}, false},
	} {
		err := CheckTarget(&alerts.ChannelSpec{Kind: alerts.ChannelSlack, Slack: &alerts.SlackSpec{URL: c.url}}, c.allow)
		if (err != nil) != c.refused {
			t.Errorf("%s with %v: %v, want refused %t", c.url, c.allow, err, c.refused)
		}
	}
	mail := &alerts.ChannelSpec{Kind: alerts.ChannelSMTP, SMTP: &alerts.SMTPSpec{Addr: "192.168.1.25:25"}}
	if CheckTarget(mail, nil) == nil || CheckTarget(&alerts.ChannelSpec{Kind: alerts.ChannelLog}, nil) != nil {
		t.Error("a mail server inside passes, or the log is refused")
	}
}

// names is a DNS server on loopback that answers every question with the address that next returns.
func names(t *testing.T, next func() netip.Addr) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(answer(buf[:n], next), from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp4", conn.LocalAddr().String())
	}}
}

// answer makes a DNS answer (RFC 1035) to a question for A or AAAA. A question for the other kind gets no record.
func answer(question []byte, next func() netip.Addr) []byte {
	end := 12
	for question[end] != 0 {
		end += int(question[end]) + 1
	}
	end += 5 // the root's label, type and class
	addr, kind := next(), uint16(1)
	if addr.Is6() {
		kind = 28
	}
	out := slices.Clone(question[:end])
	copy(out[2:12], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
	if binary.BigEndian.Uint16(question[end-4:]) != kind {
		return out
	}
	out[7] = 1
	out = append(out, 0xc0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(addr.BitLen()/8))
	return append(out, addr.AsSlice()...)
}

// TestSilentDNSServer: the resolver waits 5 s for it, which leaves time for the next server and
// for the connection.
func TestSilentDNSServer(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	_, port, _ := net.SplitHostPort(r.Listener.Addr().String())
	loopback := func() netip.Addr { return netip.MustParseAddr("127.0.0.1") }
	// Package net initializes some state at the first lookup. That must happen outside the bubble, or other tests could not use it.
	if _, err := names(t, loopback).LookupHost(t.Context(), "hook.example"); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		cfg := config(t)
		cfg.Timeout = defaultTimeout
		cfg.Resolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				question := make([]byte, 1500)
				n, err := server.Read(question) // its length in two bytes, and then itself
				for n < 2 && err == nil {
					var more int
					more, err = server.Read(question[n:])
					n += more
				}
				if asked.Add(1) <= 2 { // A and AAAA
					_, _ = server.Read(question) // until the resolver gives up
					return
				}
				reply := answer(question[2:n], loopback)
				_, _ = server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
			}()
			return client, nil
		}}
		c := made(t, cfg, hook("http://hook.example:"+port))
		if err := c.Send(t.Context(), message()); err != nil || r.count() != 1 {
			t.Errorf("%v, and %d requests came", err, r.count())
		}
	})
}

func TestNamesOfPrivateAddressesAreRefused(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	_, port, _ := net.SplitHostPort(r.Listener.Addr().String())
	for _, addr := range []string{"127.0.0.1", "10.0.0.1", "::1", "fd00::1", "169.254.169.254", "::ffff:127.0.0.1"} {
		cfg := config(t)
		cfg.Allow = nil
		cfg.Resolver = names(t, func() netip.Addr { return netip.MustParseAddr(addr) })
		err := send(t, cfg, hook("http://hook.example:"+port+"/secret"))
		wantError(t, err, "hook.example", "refused", "--alerts-allow")
	}
	if n := r.count(); n != 0 {
		t.Errorf("the receiver got %d requests, want none", n)
	}
}

// TestDNSRebindingIsRefused has a name with a public address at the first lookup, and a private
// one after that.
func TestDNSRebindingIsRefused(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	_, port, _ := net.SplitHostPort(r.Listener.Addr().String())
	var asked atomic.Int64
	cfg := config(t)
	cfg.Allow = nil
	cfg.Resolver = names(t, func() netip.Addr {
		if asked.Add(1) <= 2 { // A and AAAA
			return netip.MustParseAddr("1.1.1.1")
		}
		return netip.MustParseAddr("127.0.0.1")
	})
	if addrs, err := cfg.Resolver.LookupHost(t.Context(), "hook.example"); err != nil || !slices.Contains(addrs, "1.1.1.1") {
		t.Fatalf("the first lookup gave %v, %v; want a public address", addrs, err)
	}
	wantError(t, send(t, cfg, hook("http://hook.example:"+port+"/")), "127.0.0.1", "refused")
	if n := r.count(); n != 0 {
		t.Errorf("the receiver got %d requests, want none", n)
	}
}

// TestIPv6AddressIsConnectedTo: otherwise the tests that IPv6 addresses are refused would show
// nothing.
func TestIPv6AddressIsConnectedTo(t *testing.T) {
	t.Parallel()
	const addr = "[2001:db8::25]:587"
	for _, spec := range []*alerts.ChannelSpec{hook("https://" + addr + "/"), {Kind: alerts.ChannelSMTP, SMTP: &alerts.SMTPSpec{
		Addr: addr, TLS: "starttls", From: "a@b.example", To: []string{"c@d.example"},
	}}} {
		wantError(t, send(t, config(t), spec), "refused: 2001:db8::25 is not")
	}
}

func TestLoopbackIsRefusedUnlessAllowed(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	cfg := config(t)
	cfg.Allow = nil
	wantError(t, send(t, cfg, hook(r.URL)), "refused")
	wantError(t, send(t, cfg, &alerts.ChannelSpec{Kind: alerts.ChannelSMTP, SMTP: &alerts.SMTPSpec{
		Addr: r.Listener.Addr().String(), TLS: "none", From: "a@b.example", To: []string{"c@d.example"},
	}}), "refused")
	if n := r.count(); n != 0 {
		t.Errorf("the receiver got %d requests, want none", n)
	}
	if err := send(t, config(t), hook(r.URL)); err != nil {
		t.Errorf("with loopback allowed: %v", err)
	}
}
