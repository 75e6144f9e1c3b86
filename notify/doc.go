// Package notify is an RPC program that tells clients what changes in a directory, by
// calls from the server to the client over the connection that the client has made
// (RFC 8167). A [Server] takes the changes from a [Source], a [Client] receives them, and
// neither loses one unnoticed: an event stands for what could not be told.
//
// The numbers of the programs are from the range that RFC 5531 section 13.1 leaves to
// users. In the language of RFC 5531 section 12:
//
//	typedef opaque token[16];
//	typedef string path<4096>;       /* names separated by "/" */
//
//	enum status {
//		OK = 0,
//		NOENT = 1,                   /* no such directory */
//		NOTDIR = 2,                  /* not a directory */
//		ACCES = 3,                   /* the server may not read it */
//		FULL = 4,                    /* too many subscriptions */
//		TOOMUCH = 5,                 /* too many directories or names below it */
//		SYSTEM = 6,                  /* the server's system cannot watch it */
//		UNKNOWN = 7,                 /* UNSUBSCRIBE: no such subscription */
//		GONE = 8                     /* ENDED: it, or a directory above it, was removed or renamed */
//	};
//
//	struct subscribe_args {
//		path dir;                    /* below the root of the source, which is "" */
//		bool recursive;              /* everything below, too */
//		token *old;                  /* of a subscription made on a lost connection */
//	};
//
//	struct subscription {
//		token id;
//		bool again;                  /* it is the old one: nothing was lost */
//		unsigned int grace;          /* seconds that it outlives its connection */
//	};
//
//	union subscribe_res switch (status stat) {
//	case OK:
//		subscription ok;
//	default:
//		void;
//	};
//
//	program RPCRDMA_NOTIFY {         /* the server's */
//		version RPCRDMA_NOTIFY_V1 {
//			void          NULL(void)                = 0;
//			subscribe_res SUBSCRIBE(subscribe_args) = 1;
//			status        UNSUBSCRIBE(token)        = 2;
//		} = 1;
//	} = 0x2052444e;
//
//	enum kind {
//		CREATED = 1,
//		REMOVED = 2,                 /* or renamed to a place outside the subscription */
//		MODIFIED = 3,                /* may be told once more than it happened */
//		ATTRIBUTES = 4,              /* mode, owner, times, links */
//		OVERFLOW = 5,                /* changes were missed */
//		RENAMED = 6,
//		ENDED = 7                    /* the last event of the subscription */
//	};
//
//	struct change {
//		bool directory;
//		path name;                   /* below the directory of the subscription */
//	};
//
//	struct renaming {
//		change to;
//		path from;
//	};
//
//	union event switch (kind what) {
//	case CREATED:
//	case REMOVED:
//	case MODIFIED:
//	case ATTRIBUTES:
//	case OVERFLOW:                   /* anywhere below name, or anywhere if it is "" */
//		change what;
//	case RENAMED:
//		renaming renamed;
//	case ENDED:
//		status why;
//	};
//
//	struct notify_args {
//		token id;
//		unsigned hyper number;       /* 1, 2, 3 and so on for each subscription */
//		event events<256>;
//	};
//
//	program RPCRDMA_NOTIFIED {       /* the client's */
//		version RPCRDMA_NOTIFIED_V1 {
//			void NULL(void)          = 0;
//			void NOTIFY(notify_args) = 1;
//		} = 1;
//	} = 0x2052444f;
//
// A client must have the second program before it subscribes, and calls may arrive before
// the reply to SUBSCRIBE. Each subscription has at most one NOTIFY in flight. Changes are
// queued meanwhile: several changes of a file's contents become one event, and a single
// OVERFLOW replaces a queue that has become too long. So a slow client costs the server a
// bounded amount of memory, and learns that it has to look for itself.
//
// A client that loses its connection makes another one and subscribes again with its
// token; whoever has the token is the client. A NOTIFY without a reply is sent again, and
// the queue follows. The server forgets a client that is away for longer than the grace
// period, or that leaves a call unanswered for so long. Its token is then unknown, it gets
// a new subscription, and has to look for itself.
package notify
