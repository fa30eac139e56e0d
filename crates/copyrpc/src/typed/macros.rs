//! The macro.

/// Defines a service: a trait to implement, a client, and a client of futures. See the crate.
///
/// The trait's object type has `offer()`, what a [`Provider`](client::Provider) offers, and
/// `dispatch(handler, request, answer)`, which serves, or `dispatch_in_place(handler, request)` for
/// [`Provider::serve_in_place`](client::Provider::serve_in_place). A method gets the request as it came, and its
/// arguments. After the names may stand `codec SomeCodec`.
///
/// The methods of an `async trait` are futures, and get the context of the request; its `dispatch(handler, request)` is
/// the future for [`Provider::run_async`](client::Provider::run_async), or for an executor that
/// [`Provider::run`](client::Provider::run) gives it to. Clients do not see the difference.
///
/// The calls of a `lending trait` carry slices of memory, and its client of futures may be left out; its
/// `offer(socket, config)` makes a [`BulkProvider`](client::bulk::BulkProvider), its `answer(handler, provider, work)`
/// answers a call of that, and its methods get a [`Lent`](crate::typed::Lent). Before arguments and slices of a call go eight bytes of the types of the method.
#[macro_export]
macro_rules! service {
    (
        $(#[$doc:meta])*
        $vis:vis trait $service:ident($name:literal), client $client:ident, futures $futures:ident {
            $($methods:tt)*
        }
    ) => {
        $crate::service! {
            $(#[$doc])*
            $vis trait $service($name), client $client, futures $futures, codec $crate::typed::Postcard {
                $($methods)*
            }
        }
    };
    (
        $(#[$doc:meta])*
        $vis:vis async trait $service:ident($name:literal), client $client:ident, futures $futures:ident {
            $($methods:tt)*
        }
    ) => {
        $crate::service! {
            $(#[$doc])*
            $vis async trait $service($name), client $client, futures $futures, codec $crate::typed::Postcard {
                $($methods)*
            }
        }
    };
    (
        $(#[$doc:meta])*
        $vis:vis trait $service:ident($name:literal), client $client:ident, futures $futures:ident,
            codec $codec:path {
            $(
                $(#[$method_doc:meta])*
                fn $method:ident($($argument:ident: $type:ty),* $(,)?) -> $value:ty;
            )*
        }
    ) => {
        $(#[$doc])*
        $vis trait $service {
            $(
                $(#[$method_doc])*
                ///
                /// # Errors
                ///
                /// The error for the caller.
                fn $method(
                    &self,
                    request: &$crate::typed::client::Inbound<'_>,
                    $($argument: $type),*
                ) -> ::core::result::Result<$value, $crate::typed::Failure>;
            )*
        }

        impl dyn $service {
            /// Answers a request.
            #[allow(dead_code, reason = "a program serves as it needs")]
            $vis fn dispatch(
                handler: &impl $service,
                request: &$crate::typed::client::Inbound<'_>,
                answer: &mut ::std::vec::Vec<u8>,
            ) -> $crate::typed::client::Status {
                $(
                    if request.method == $crate::typed::client::name::method_number(stringify!($method)) {
                        return $crate::typed::glue::answer::<$codec, ($($type,)*), $value>(
                            request,
                            answer,
                            |($($argument,)*)| handler.$method(request, $($argument),*),
                        );
                    }
                )*
                $crate::typed::client::Status::Unimplemented
            }

            /// Answers a request where the daemon reads it.
            #[allow(dead_code, reason = "a program serves as it needs")]
            $vis fn dispatch_in_place(
                handler: &impl $service,
                request: &$crate::typed::client::Inbound<'_>,
            ) -> $crate::typed::InPlaceAnswer {
                $(
                    if request.method == $crate::typed::client::name::method_number(stringify!($method)) {
                        return $crate::typed::glue::answer_in_place::<$codec, ($($type,)*), $value>(
                            request,
                            |($($argument,)*)| handler.$method(request, $($argument),*),
                        );
                    }
                )*
                $crate::typed::InPlaceAnswer::refused($crate::typed::client::Status::Unimplemented)
            }
        }

        $crate::service! {
            @callers $vis $service($name), $client, $futures, $codec {
                $( $(#[$method_doc])* fn $method($($argument: $type),*) -> $value; )*
            }
        }
    };
    (
        $(#[$doc:meta])*
        $vis:vis async trait $service:ident($name:literal), client $client:ident, futures $futures:ident,
            codec $codec:path {
            $(
                $(#[$method_doc:meta])*
                fn $method:ident($($argument:ident: $type:ty),* $(,)?) -> $value:ty;
            )*
        }
    ) => {
        $(#[$doc])*
        $vis trait $service {
            $(
                $(#[$method_doc])*
                ///
                /// # Errors
                ///
                /// The error for the caller.
                fn $method(
                    &self,
                    request: $crate::typed::client::RequestContext,
                    $($argument: $type),*
                ) -> impl ::core::future::Future<
                    Output = ::core::result::Result<$value, $crate::typed::Failure>,
                >
                where
                    Self: Sized;
            )*
        }

        impl dyn $service {
            /// Answers a request. The future of a cancelled call is dropped.
            #[allow(dead_code, reason = "a program serves as it needs")]
            $vis async fn dispatch(handler: &impl $service, request: $crate::typed::client::Request) {
                $(
                    if request.method() == $crate::typed::client::name::method_number(stringify!($method)) {
                        return $crate::typed::glue::answer_async::<$codec, ($($type,)*), $value, _>(
                            request,
                            |context, ($($argument,)*)| handler.$method(context, $($argument),*),
                        )
                        .await;
                    }
                )*
                request.reply($crate::typed::client::Status::Unimplemented, ::std::vec::Vec::new());
            }
        }

        $crate::service! {
            @callers $vis $service($name), $client, $futures, $codec {
                $( $(#[$method_doc])* fn $method($($argument: $type),*) -> $value; )*
            }
        }
    };
    (
        $(#[$doc:meta])*
        $vis:vis lending trait $service:ident($name:literal), client $client:ident
            $(, futures $futures:ident)? {
            $($methods:tt)*
        }
    ) => {
        $crate::service! {
            $(#[$doc])*
            $vis lending trait $service($name), client $client $(, futures $futures)?,
                codec $crate::typed::Postcard {
                $($methods)*
            }
        }
    };
    (
        $(#[$doc:meta])*
        $vis:vis lending trait $service:ident($name:literal), client $client:ident
            $(, futures $futures:ident)?, codec $codec:path {
            $(
                $(#[$method_doc:meta])*
                fn $method:ident($($argument:ident: $type:ty),* $(,)?) -> $value:ty;
            )*
        }
    ) => {
        $(#[$doc])*
        $vis trait $service {
            $(
                $(#[$method_doc])*
                ///
                /// # Errors
                ///
                /// The error for the caller.
                fn $method(
                    &mut self,
                    lent: &mut $crate::typed::Lent<'_>,
                    $($argument: $type),*
                ) -> ::core::result::Result<$value, $crate::typed::Failure>;
            )*
        }

        $crate::service! {
            @named $vis $service($name) {
                $( fn $method($($argument: $type),*) -> $value; )*
            }
        }

        impl dyn $service {
            /// Offers the service.
            ///
            /// # Errors
            ///
            #[doc = "`ProvideError`."]
            #[allow(dead_code, reason = "a program may only call")]
            $vis fn offer(
                socket: &::std::path::Path,
                config: $crate::typed::client::ClientConfig,
            ) -> ::core::result::Result<
                $crate::typed::client::bulk::BulkProvider,
                $crate::typed::client::ProvideError,
            > {
                $crate::typed::glue::offer_lending(socket, $name, config)
            }

            /// Answers a call.
            ///
            /// # Errors
            ///
            #[doc = "`CallError`: the daemon is gone, and not looked for."]
            #[allow(dead_code, reason = "a program may only call")]
            $vis fn answer(
                handler: &mut impl $service,
                provider: &mut $crate::typed::client::bulk::BulkProvider,
                work: $crate::typed::client::bulk::BulkRequest,
            ) -> ::core::result::Result<(), $crate::typed::client::CallError> {
                $(
                    if work.method == $crate::typed::client::name::method_number(stringify!($method)) {
                        const METHOD: $crate::typed::glue::Method = $crate::typed::glue::Method::new(
                            stringify!($method),
                            concat!("(" $(, stringify!($type), ",")*, ")", stringify!($value)),
                        );
                        let (status, body) =
                            $crate::typed::glue::answer_lending::<$codec, ($($type,)*), $value>(
                                &METHOD,
                                provider,
                                &work,
                                |lent, ($($argument,)*)| handler.$method(lent, $($argument),*),
                            );
                        return provider.answer(work, status, &body);
                    }
                )*
                provider.answer(work, $crate::typed::client::Status::Unimplemented, &[])
            }
        }

        $crate::service! {
            @lending_callers $vis $service($name), $client, [$($futures)?], $codec, {
                $( $(#[$method_doc])* fn $method($($argument: $type),*) -> $value; )*
            }
        }
    };
    (
        @lending_callers $vis:vis $service:ident($name:literal), $client:ident, [$($futures:ident)?],
            $codec:path, $methods:tt
    ) => {
        $crate::service! {
            @client $vis $client($name), LendingCaller,
            /// Calls the service, one call at a time, each with slices of memory that the service may use until it
            /// answers.
        }

        #[allow(dead_code, reason = "a program calls what it needs")]
        impl $client {
            /// The client, which makes the regions that calls lend.
            $vis fn client(&mut self) -> &mut $crate::typed::client::Client {
                self.0.client()
            }
        }

        $crate::service! { @lending_methods $vis $client, $codec $methods }

        $(
            /// Calls the service; each call is a future, with slices of memory that the service may use until it answers.
            #[derive(Clone, Debug)]
            $vis struct $futures<C = $crate::typed::client::FutureClient>(
                $crate::typed::glue::LendingFutureCaller<C>,
            );

            #[allow(dead_code, reason = "a program calls what it needs")]
            impl<C: $crate::typed::LendingCalls> $futures<C> {
                /// Calls the service on `rank`.
                $vis fn new(client: C, rank: u32) -> Self {
                    Self($crate::typed::glue::LendingFutureCaller::new(client, rank, $name))
                }

                /// The same, with calls that have this deadline.
                $vis fn within(&self, timeout: ::core::time::Duration) -> Self {
                    Self(self.0.within(timeout))
                }

                /// The client, which makes the regions that calls lend.
                $vis fn client(&self) -> &C {
                    self.0.client()
                }
            }

            $crate::service! { @lending_futures $vis $futures, $codec $methods }
        )?
    };
    (
        @lending_methods $vis:vis $client:ident, $codec:path {
            $(
                $(#[$method_doc:meta])*
                fn $method:ident($($argument:ident: $type:ty),*) -> $value:ty;
            )*
        }
    ) => {
        #[allow(dead_code, reason = "a program calls what it needs")]
        impl $client {
            $(
                $(#[$method_doc])*
                ///
                /// # Errors
                ///
                #[doc = "`TypedError`."]
                $vis fn $method(
                    &mut self,
                    slices: &[$crate::typed::client::bulk::Slice<'_>],
                    $($argument: $type),*
                ) -> ::core::result::Result<$value, $crate::typed::TypedError> {
                    const METHOD: $crate::typed::glue::Method = $crate::typed::glue::Method::new(
                        stringify!($method),
                        concat!("(" $(, stringify!($type), ",")*, ")", stringify!($value)),
                    );
                    self.0.call::<$codec, ($($type,)*), $value>(
                        &METHOD,
                        slices,
                        &($($argument,)*),
                    )
                }
            )*
        }
    };
    (
        @lending_futures $vis:vis $futures:ident, $codec:path {
            $(
                $(#[$method_doc:meta])*
                fn $method:ident($($argument:ident: $type:ty),*) -> $value:ty;
            )*
        }
    ) => {
        #[allow(dead_code, reason = "a program calls what it needs")]
        impl<C: $crate::typed::LendingCalls> $futures<C> {
            $(
                $(#[$method_doc])*
                ///
                /// # Errors
                ///
                #[doc = "`TypedError`."]
                $vis fn $method(
                    &self,
                    slices: &[$crate::typed::client::bulk::Slice<'_>],
                    $($argument: $type),*
                ) -> impl ::core::future::Future<
                    Output = ::core::result::Result<$value, $crate::typed::TypedError>,
                > + use<C> {
                    const METHOD: $crate::typed::glue::Method = $crate::typed::glue::Method::new(
                        stringify!($method),
                        concat!("(" $(, stringify!($type), ",")*, ")", stringify!($value)),
                    );
                    self.0.call::<$codec, ($($type,)*), $value>(
                        &METHOD,
                        slices,
                        &($($argument,)*),
                    )
                }
            )*
        }
    };
    (
        @client $vis:vis $client:ident($name:literal), $caller:ident, $(#[$doc:meta])*
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        $vis struct $client($crate::typed::glue::$caller);

        #[allow(dead_code, reason = "a program calls what it needs")]
        impl $client {
            /// Calls the service on `rank`.
            $vis fn new(client: $crate::typed::client::Client, rank: u32) -> Self {
                Self($crate::typed::glue::$caller::new(client, rank, $name))
            }

            /// Gives the next call a deadline of its own.
            $vis fn within(&mut self, timeout: ::core::time::Duration) -> &mut Self {
                self.0.within(timeout);
                self
            }

            /// The client, for other services.
            $vis fn into_client(self) -> $crate::typed::client::Client {
                self.0.into_client()
            }
        }
    };
    (
        @named $vis:vis $service:ident($name:literal) {
            $( fn $method:ident($($argument:ident: $type:ty),*) -> $value:ty; )*
        }
    ) => {
        #[allow(dead_code, reason = "a program names what it needs")]
        impl dyn $service {
            /// Name of the service.
            $vis const NAME: &'static str = $name;

            const METHODS: &'static [$crate::typed::glue::Method] = &[$(
                $crate::typed::glue::Method::new(
                    stringify!($method),
                    concat!("(" $(, stringify!($type), ",")*, ")", stringify!($value)),
                )
            ),*];
        }

        const _: () = assert!(
            $crate::typed::glue::are_distinct(<dyn $service>::METHODS),
            "two methods' names share a number: rename one",
        );
    };
    (
        @callers $vis:vis $service:ident($name:literal), $client:ident, $futures:ident, $codec:path {
            $(
                $(#[$method_doc:meta])*
                fn $method:ident($($argument:ident: $type:ty),*) -> $value:ty;
            )*
        }
    ) => {
        $crate::service! {
            @named $vis $service($name) {
                $( fn $method($($argument: $type),*) -> $value; )*
            }
        }

        impl dyn $service {
            /// The offer of a provider.
            $vis fn offer() -> $crate::typed::client::Offer {
                $crate::typed::glue::offer($name, Self::METHODS)
            }
        }

        $crate::service! {
            @client $vis $client($name), Caller,
            /// Calls the service, one call at a time.
        }

        #[allow(dead_code, reason = "a program calls what it needs")]
        impl $client {
            $(
                $(#[$method_doc])*
                ///
                /// # Errors
                ///
                #[doc = "`TypedError`."]
                $vis fn $method(
                    &mut self,
                    $($argument: $type),*
                ) -> ::core::result::Result<$value, $crate::typed::TypedError> {
                    const METHOD: $crate::typed::glue::Method =
                        $crate::typed::glue::Method::new(stringify!($method), "");
                    self.0.call::<$codec, ($($type,)*), $value>(
                        <dyn $service>::METHODS,
                        &METHOD,
                        &($($argument,)*),
                    )
                }
            )*
        }

        /// Calls the service; each call is a future.
        #[derive(Clone, Debug)]
        $vis struct $futures<C = $crate::typed::client::FutureClient>($crate::typed::glue::FutureCaller<C>);

        #[allow(dead_code, reason = "a program calls what it needs")]
        impl<C: $crate::typed::FutureCalls> $futures<C> {
            /// Calls the service on `rank`, after a look whether it means the same types.
            ///
            /// # Errors
            ///
            #[doc = "`TypedError`."]
            $vis async fn new(
                client: C,
                rank: u32,
            ) -> ::core::result::Result<Self, $crate::typed::TypedError> {
                let caller = $crate::typed::glue::FutureCaller::new(client, rank, $name);
                caller.check(<dyn $service>::METHODS).await?;
                Ok(Self(caller))
            }

            /// The same, with calls that have this deadline.
            $vis fn within(&self, timeout: ::core::time::Duration) -> Self {
                Self(self.0.within(timeout))
            }

            $(
                $(#[$method_doc])*
                ///
                /// # Errors
                ///
                #[doc = "`TypedError`."]
                $vis fn $method(
                    &self,
                    $($argument: $type),*
                ) -> impl ::core::future::Future<
                    Output = ::core::result::Result<$value, $crate::typed::TypedError>,
                > + use<C> {
                    const METHOD: $crate::typed::glue::Method =
                        $crate::typed::glue::Method::new(stringify!($method), "");
                    self.0.call::<$codec, ($($type,)*), $value>(&METHOD, &($($argument,)*))
                }
            )*
        }
    };
}
