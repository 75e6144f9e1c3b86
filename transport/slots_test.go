package transport

import "testing"

// TestXIDsOfConnections: connections that follow one another never have calls with the same xid,
// also when the one before lives on, and whichever slots each of them has made: a call that has lost
// its connection keeps its xid on the next one.
func TestXIDsOfConnections(t *testing.T) {
	_, cfg, err := new(Settings).Server().settle()
	if err != nil {
		t.Fatal(err)
	}
	made := make(map[uint32]string)
	// calls has a connection make n calls at once, a few times.
	calls := func(name string, c *conn, n int) {
		t.Helper()
		for range 5 {
			st := c.state.Lock()
			list := make([]*slot, n)
			for i := range list {
				list[i] = st.calls.take()
				xid := list[i].xid
				if who := made[xid]; who != "" {
					t.Fatalf("%s has a call with the xid %#x of one of %s", name, xid, who)
				}
				made[xid] = name
			}
			for _, s := range list {
				st.release(s)
			}
			c.state.Unlock()
		}
	}
	next := func(from *conn) *conn {
		c, _ := newConn(peerConn{newPeer(t)}, "script", cfg, roleServer, nil)
		if from != nil {
			c.inherit(from)
		}
		return c
	}
	a := next(nil)
	calls("the first", a, 3)
	b := next(a)
	calls("the second", b, 1)
	c := next(b) // before b has made as many slots as a
	calls("the second", b, 3)
	calls("the third", c, 3)
	calls("the first", a, 5) // slots that nobody has had
	calls("the second", b, 5)
	calls("the third", c, 5)
	calls("the fourth", next(c), 6)
}
