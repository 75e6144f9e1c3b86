package krb5

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/rpcrdma/rpcrdma/internal/testing/kdctest"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// TestPseudoRandom: what krb5_c_prf of MIT's library, version 1.20.1, returns for the same keys and text.
func TestPseudoRandom(t *testing.T) {
	for etype, want := range map[int32]string{
		20: "93a971465fbfea9b303dfeadaf74b29dd0e1b77e5f6a5f307520b883fe12dc35b8a6d132d970e334c43fd761324dcdbb", 19: "f1758d369b8c92aca918cb0b41b7f77002afca151aaea49941ec033f6648f3e7", 18: "180a55626838c48308ef3eae4734e4b0", 17: "9b4fb86ab19d8681ff41bd8fcf3776bc",
	} {
		s := &session{base: types.EncryptionKey{KeyType: etype, KeyValue: make([]byte, keySize(etype))}}
		for i := range s.base.KeyValue {
			s.base.KeyValue[i] = byte(i)
		}
		if got, err := s.PseudoRandom([]byte("text"), len(want)/2); err != nil || hex.EncodeToString(got) != want {
			t.Errorf("etype %d: %x, %v", etype, got, err)
		}
	}
}

// TestPseudoRandomMIT: an initiator with MIT's library has the same pseudo-random bytes as the acceptor here, for each encryption type.
func TestPseudoRandomMIT(t *testing.T) {
	k := kdctest.New(t, "EXAMPLE.COM")
	program := filepath.Join(k.Dir, "prf")
	if out, err := exec.Command("cc", "-o", program, "testdata/prf.c", "-l:libgssapi_krb5.so.2").CombinedOutput(); err != nil {
		rdmatest.Lacking(t, "kdc", fmt.Sprintf("no program of MIT's library can be built: %v\n%s", err, out))
	}
	k.Run(t, "", "kinit", "-k", "-t", k.Keytab(t, "alice", kdctest.AES), "alice")
	for etype, name := range map[int32]string{
		20: "aes256-cts-hmac-sha384-192", 19: "aes128-cts-hmac-sha256-128", 18: "aes256-cts-hmac-sha1-96", 17: "aes128-cts-hmac-sha1-96",
	} {
		acceptor, err := NewAcceptor(AcceptorConfig{Keytab: k.Keytab(t, "nfs/"+name, name+":normal")})
		if err != nil {
			t.Fatal(err)
		}
		k.Run(t, "", "kadmin.local", "-r", "EXAMPLE.COM", "setstr", "nfs/"+name, "session_enctypes", name)
		cmd := exec.Command(program, "nfs/"+name+"@EXAMPLE.COM", "some text")
		cmd.Env = k.Env
		cmd.Stderr = os.Stderr
		in, _ := cmd.StdinPipe()
		stdout, _ := cmd.StdoutPipe()
		out := bufio.NewReader(stdout)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := func() []byte {
			var b []byte
			if _, err := fmt.Fscanf(out, "%x\n", &b); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return b
		}
		gss, _ := acceptor.Accept()
		token, done, err := gss.Step(line())
		if err != nil || !done {
			t.Fatal(err)
		}
		fmt.Fprintf(in, "%x\n", token)
		s := &gss.(*accepting).session
		want, err := s.PseudoRandom([]byte("some text"), 100)
		if got := line(); err != nil || string(got) != string(want) || s.base.KeyType != etype {
			t.Errorf("%s: %x, here %x, with a key of type %d, %v", name, got, want, s.base.KeyType, err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}
