// Package crc32c is hash/crc32 for the Castagnoli polynomial alone, up to three
// times as fast on CPUs that multiply polynomials in registers of 512 bits.
package crc32c

import "hash/crc32"

// castagnoli is the table of CRC32C. The standard library computes it with the
// CPU's instruction where there is one.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// foldMin is the least that is worth it, in bytes: 15 ns against 23 on Zen 5.
const foldMin = 256

// Update is crc32.Update with the Castagnoli table: it extends crc, which is zero
// at first, over p, which it reads and does not keep.
func Update(crc uint32, p []byte) uint32 {
	if len(p) >= foldMin {
		crc, p = front(crc, p)
	}
	return crc32.Update(crc, castagnoli, p)
}
